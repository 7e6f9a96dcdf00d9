// Nightly is a job that every copy of a service starts at the same time, and that
// one of them is to do. Run it twice at once:
//
//	go run ./examples/nightly & go run ./examples/nightly
//
// LOCK_URL chooses the backend; without it the copies must run on one machine, as
// one user.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/mortiselock/lock"
	_ "github.com/mortiselock/lock/backend/file"
	_ "github.com/mortiselock/lock/backend/memory"
	_ "github.com/mortiselock/lock/redis"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, cmp.Or(os.Getenv("LOCK_URL"), "file:"), 500*time.Millisecond, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "nightly:", err)
		os.Exit(1)
	}
}

// run does the job, or says who does it.
func run(ctx context.Context, url string, perPage time.Duration, out io.Writer) error {
	locker, err := lock.Open(ctx, url)
	if err != nil {
		return err
	}
	defer locker.Close()

	err = lock.TryDo(ctx, locker, "examples/nightly", func(ctx context.Context, lease lock.Lease) error {
		fmt.Fprintf(out, "token %d: writing the report\n", lease.Token())
		for page := 1; page <= 5; page++ {
			select {
			case <-ctx.Done(): // interrupted, or the hold was lost: another copy may begin
				return context.Cause(ctx)
			case <-time.After(perPage):
				fmt.Fprintf(out, "token %d: page %d\n", lease.Token(), page)
			}
		}
		return nil
	}, lock.WithLabel("nightly report"))

	var held *lock.HeldError
	if errors.As(err, &held) {
		fmt.Fprintf(out, "nothing to do: the report is being written by %s\n", held.Holder)
		return nil
	}
	return err
}
