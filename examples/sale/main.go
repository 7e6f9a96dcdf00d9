// Sale is a flash sale: a hundred pieces, a thousand buyers, 64 of them at once. Each way
// to sell no piece twice has its turn: a lock, the same with the write in a transaction
// that takes effect only under the lock, a row lock whose own transaction does the work,
// a version column, and one script on Redis.
//
//	go run ./examples/sale                        # a lock in files; the others need servers
//	make sale                                     # all, with servers of its own
//	go run ./examples/sale -mysql 'user:password@tcp(localhost:3306)/database' -redis redis://localhost:6379
//	LOCK_URL=etcd://localhost:2379 go run ./examples/sale
//
// It makes a table named example_sale and keys named {example-sale}..., and removes them
// in the end.
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
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	var at servers
	flag.StringVar(&at.lock, "lock", cmp.Or(os.Getenv("LOCK_URL"), os.Getenv("REDIS_URL")), "where the way called lock has its lock (default: LOCK_URL, else the Redis, else in files)")
	flag.StringVar(&at.mysql, "mysql", os.Getenv("MYSQL_DSN"), "MySQL or MariaDB, as user:password@tcp(host:port)/database")
	flag.StringVar(&at.redis, "redis", os.Getenv("REDIS_URL"), "Redis, as redis://host:port")
	s := sale{think: func() { time.Sleep(time.Millisecond) }}
	flag.IntVar(&s.stock, "stock", 100, "pieces on the shelf")
	flag.IntVar(&s.buyers, "buyers", 1000, "who wants one")
	flag.IntVar(&s.atOnce, "at-once", 64, "how many of them try at the same time")
	flag.Parse()
	at.name = "example_sale"
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	_, err := run(ctx, at, s, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "sale:", err)
		os.Exit(1)
	}
}

// servers are where the ways keep things. Those whose server is not named are left out.
type servers struct {
	lock, mysql, redis string
	name               string // of the table, and in the keys
}

// sale is what is sold to how many.
type sale struct {
	stock, buyers, atOnce int
	think                 func() // what a buyer does between reading and writing
}

// shop is a shelf, and one way to sell from it.
type shop struct {
	// buy sells one piece, or says that none is left.
	buy   func(ctx context.Context, buyer int) (sold bool, err error)
	left  func(ctx context.Context) (int, error)
	asked func(ctx context.Context) (int, error) // what the server was asked so far; nil: not counted
	close func(ctx context.Context) error
}

// way opens a shop with a full shelf.
type way struct {
	name string
	open func(ctx context.Context, at servers, s sale) (*shop, error)
}

// errNoServer is returned by the open of a way that has none.
var errNoServer = errors.New("no server is named")

const control = "no lock"

var ways = []way{
	{control, noLock},
	{"lock", byLock},
	{"lock table and Guarded", byGuarded},
	{"row lock and InTx", byInTx},
	{"version column", byVersion},
	{"script", byScript},
}

// result is what a sale came to. Oversold are the pieces that were sold and are not
// missing on the shelf.
type result struct {
	way            string
	sold, oversold int
	took           time.Duration
	perPurchase    float64 // statements or commands; 0: not counted
}

// run lets each way have its sale, and prints a table. Only without a lock may more be
// sold than there was.
func run(ctx context.Context, at servers, s sale, out io.Writer) (results []result, err error) {
	fmt.Fprintf(out, "%d pieces, %d buyers, %d at once\n\n", s.stock, s.buyers, s.atOnce)
	fmt.Fprintln(out, "| way | sold | oversold | time | statements or commands per purchase |\n|---|--:|--:|--:|--:|")
	for _, w := range ways {
		r, err := w.sell(ctx, at, s)
		if errors.Is(err, errNoServer) {
			fmt.Fprintf(out, "| %s | left out: %v |\n", w.name, err)
			continue
		}
		if err != nil {
			return results, fmt.Errorf("%s: %w", w.name, err)
		}
		results = append(results, r)
		asked := "not counted"
		if r.perPurchase > 0 {
			asked = fmt.Sprintf("%.1f", r.perPurchase)
		}
		fmt.Fprintf(out, "| %s | %d | %d | %.2f s | %s |\n", r.way, r.sold, r.oversold, r.took.Seconds(), asked)
		if r.oversold != 0 && r.way != control {
			return results, fmt.Errorf("%s: %d pieces too many were sold", r.way, r.oversold)
		}
	}
	return results, nil
}

// sell opens the shop, and lets the buyers in.
func (w way) sell(ctx context.Context, at servers, s sale) (r result, err error) {
	shop, err := w.open(ctx, at, s)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, shop.close(context.WithoutCancel(ctx))) }()
	before, err := shop.count(ctx)
	if err != nil {
		return r, err
	}
	begun := time.Now()
	sold, err := s.crowd(ctx, shop.buy)
	took := time.Since(begun)
	if err != nil {
		return r, err
	}
	after, err := shop.count(ctx)
	if err != nil {
		return r, err
	}
	left, err := shop.left(ctx)
	if err != nil {
		return r, err
	}
	return result{w.name, sold, sold - (s.stock - left), took, float64(after-before) / float64(max(sold, 1))}, nil
}

func (s *shop) count(ctx context.Context) (int, error) {
	if s.asked == nil {
		return 0, nil
	}
	return s.asked(ctx)
}

// crowd lets every buyer try once.
func (s sale) crowd(ctx context.Context, buy func(context.Context, int) (bool, error)) (int, error) {
	var next, sold atomic.Int64
	failed := make([]error, s.atOnce)
	var wg sync.WaitGroup
	for i := range s.atOnce {
		wg.Go(func() {
			for {
				buyer := int(next.Add(1))
				if buyer > s.buyers {
					return
				}
				ok, err := buy(ctx, buyer)
				if err != nil {
					failed[i] = err
					return
				}
				if ok {
					sold.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return int(sold.Load()), errors.Join(failed...)
}
