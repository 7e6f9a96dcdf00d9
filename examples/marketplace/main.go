// Marketplace is the well-known comparison of locks on Redis. Sellers list items, buyers
// buy them, and each way to keep two buyers from the same item has its turn: WATCH,
// a simple lock for the whole market, this project's lock for the market, and this
// project's lock for one item. No money and no item may be made or lost.
//
//	make marketplace                                              # starts a Redis of its own
//	go run ./examples/marketplace -redis redis://localhost:6379   # makes keys named {marketplace-...
//	go run ./examples/marketplace -redis ... -lock file:          # locks kept elsewhere
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	goredis "github.com/redis/go-redis/v9"

	_ "github.com/mortiselock/lock/etcd"
	_ "github.com/mortiselock/lock/file"
	_ "github.com/mortiselock/lock/mysql"
	_ "github.com/mortiselock/lock/redis"
	_ "github.com/mortiselock/lock/redis/redlock"
	_ "github.com/mortiselock/lock/zookeeper"
)

func main() {
	redisURL := flag.String("redis", os.Getenv("REDIS_URL"), "where the market is")
	lockURL := flag.String("lock", os.Getenv("LOCK_URL"), "where the locks are (default: the same Redis)")
	length := flag.Duration("for", 5*time.Second, "how long each way has with each crowd")
	together := flag.Bool("together", false, "buyers read price and purse in one request, not one after the other")
	of := flag.String("crowds", "1x1,5x1,5x5,20x20", "sellers x buyers")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	crowds, err := parseCrowds(*of)
	if err == nil {
		_, err = run(ctx, *redisURL, *lockURL, crowds, *length, *together, os.Stdout)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "marketplace:", err)
		os.Exit(1)
	}
}

// crowd is how many sell and buy at once.
type crowd struct{ sellers, buyers int }

func parseCrowds(text string) (crowds []crowd, err error) {
	for one := range strings.SplitSeq(text, ",") {
		var c crowd
		if _, err := fmt.Sscanf(one, "%dx%d", &c.sellers, &c.buyers); err != nil || c.sellers < 1 || c.buyers < 1 {
			return nil, fmt.Errorf("%q is no crowd: write sellers x buyers, as in 5x5,20x20", one)
		}
		crowds = append(crowds, c)
	}
	return crowds, nil
}

// run gives each way its turn with each crowd, and prints a line for each.
func run(ctx context.Context, redisURL, lockURL string, crowds []crowd, length time.Duration, together bool, out io.Writer) ([]result, error) {
	if redisURL == "" {
		return nil, errors.New("say which Redis has the market, as in -redis redis://localhost:6379, or run make marketplace")
	}
	opts, err := goredis.ParseURL(redisURL)
	if err != nil {
		return nil, err
	}
	for _, c := range crowds {
		opts.PoolSize = max(opts.PoolSize, c.sellers+c.buyers)
	}
	redis := goredis.NewClient(opts)
	defer redis.Close()

	fmt.Fprintln(out, "| sellers x buyers | way | listed | bought | retries | mean wait |")
	fmt.Fprintln(out, "|---|---|--:|--:|--:|--:|")
	var results []result
	for _, c := range crowds {
		for _, w := range ways {
			r, err := trading(ctx, market{redis: redis, together: together}, cmp.Or(lockURL, redisURL), w, c.sellers, c.buyers, length)
			if err != nil {
				return results, err
			}
			if ctx.Err() != nil {
				return results, context.Cause(ctx)
			}
			results = append(results, r)
			fmt.Fprintf(out, "| %dx%d | %s | %d | %d | %d | %.1f ms |\n", r.sellers, r.buyers, r.way,
				r.listed, r.bought, r.retries, float64(r.meanWait().Microseconds())/1000)
		}
	}
	return results, nil
}
