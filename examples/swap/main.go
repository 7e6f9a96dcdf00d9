// Swap is one program for every backend: which of them it runs on is decided by
// LOCK_URL alone, or by a name in a configuration file.
//
//	LOCK_URL=file:/tmp/locks go run ./examples/swap /tmp/orders
//	LOCK_URL=redis://localhost:6379 go run ./examples/swap /tmp/orders
//	go run ./examples/swap -config locks.yaml -locker jobs /tmp/orders
//
// It is a batch dispatcher: the file holds the number of the next order. Every copy
// reads it, works for a moment, and writes the number after it. Two at once would
// dispatch an order twice.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/config"

	// What LOCK_URL may name.
	_ "github.com/mortiselock/lock/etcd"
	_ "github.com/mortiselock/lock/file"
	_ "github.com/mortiselock/lock/memory"
	_ "github.com/mortiselock/lock/mysql"
	_ "github.com/mortiselock/lock/redis"
	_ "github.com/mortiselock/lock/redis/redlock"
	_ "github.com/mortiselock/lock/zookeeper"
)

func main() {
	file := flag.String("config", "", "configuration file, instead of LOCK_URL")
	name := flag.String("locker", "", "name of the locker in it")
	orders := flag.Int("orders", 10, "how many orders to dispatch")
	flag.Parse()
	logging.Disable() // go-redis writes to stderr otherwise
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *file, *name, flag.Arg(0), *orders); err != nil {
		fmt.Fprintln(os.Stderr, "swap:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, file, name, next string, orders int) error {
	if next == "" {
		return errors.New("say which file holds the number of the next order")
	}
	locker, err := open(ctx, file, name)
	if err != nil {
		return err
	}
	defer locker.Close()
	for range orders {
		err := lock.Do(ctx, locker, "examples/swap", func(ctx context.Context, lease lock.Lease) error {
			return dispatch(ctx, lease, next)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// open is all that knows about backends.
func open(ctx context.Context, file, name string) (*lock.Client, error) {
	if file == "" {
		return lock.Open(ctx, cmp.Or(os.Getenv("LOCK_URL"), "file:"), &lock.Options{TTL: 4 * time.Second})
	}
	f, err := config.Load(file)
	if err != nil {
		return nil, err
	}
	return f.Open(ctx, name, nil)
}

// dispatch reads the number, works, and writes the next number.
func dispatch(ctx context.Context, lease lock.Lease, next string) error {
	text, err := os.ReadFile(next)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	order, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	time.Sleep(time.Millisecond)
	if ctx.Err() != nil { // the hold was lost: somebody else is at it
		return context.Cause(ctx)
	}
	fmt.Printf("token %d: order %d\n", lease.Token(), order)
	return os.WriteFile(next, []byte(strconv.Itoa(order+1)), 0o600)
}
