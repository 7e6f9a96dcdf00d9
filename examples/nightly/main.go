// Nightly is a job that every copy of a service starts at about the same time, and
// that is to be done once. Run it twice at once, and once more:
//
//	go run ./examples/nightly & go run ./examples/nightly; wait; go run ./examples/nightly
//
// The lock says who works now. What was done already is told by the report itself,
// which has its name only when it is complete: a copy that comes when the others are
// through finds it.
//
// LOCK_URL chooses the backend; without it the copies must run on one machine, as
// one user. REPORTS is the directory of the reports.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/mortiselock/lock"
	_ "github.com/mortiselock/lock/file"
	_ "github.com/mortiselock/lock/memory"
	_ "github.com/mortiselock/lock/redis"
	_ "github.com/mortiselock/lock/redis/redlock"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	report := filepath.Join(cmp.Or(os.Getenv("REPORTS"), os.TempDir()), "report-"+time.Now().Format(time.DateOnly)+".txt")
	err := run(ctx, cmp.Or(os.Getenv("LOCK_URL"), "file:"), report, 500*time.Millisecond, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "nightly:", err)
		os.Exit(1)
	}
}

// run writes the report, unless it is there or another copy is at it.
func run(ctx context.Context, url, report string, perPage time.Duration, out io.Writer) error {
	locker, err := lock.Open(ctx, url, nil)
	if err != nil {
		return err
	}
	defer locker.Close()

	err = lock.TryDo(ctx, locker, "examples/nightly", func(ctx context.Context, lease lock.Lease) error {
		// Under the lock: before it, another copy could finish between look and grant.
		if _, err := os.Stat(report); err == nil {
			fmt.Fprintf(out, "nothing to do: %s is there\n", report)
			return nil
		}
		fmt.Fprintf(out, "token %d: writing %s\n", lease.Token(), report)
		return write(ctx, lease, report, perPage, out)
	}, lock.WithLabel("nightly report"))

	var held *lock.HeldError
	if errors.As(err, &held) {
		fmt.Fprintf(out, "nothing to do: the report is being written by %s\n", held.Holder)
		return nil
	}
	return err
}

// write writes the pages beside the report, and gives them its name when all are there.
func write(ctx context.Context, lease lock.Lease, report string, perPage time.Duration, out io.Writer) error {
	var text strings.Builder
	for page := 1; page <= 5; page++ {
		select {
		case <-ctx.Done(): // interrupted, or the hold was lost: another copy may begin
			return context.Cause(ctx)
		case <-time.After(perPage):
			fmt.Fprintf(&text, "page %d\n", page)
			fmt.Fprintf(out, "token %d: page %d\n", lease.Token(), page)
		}
	}
	// Each hold has a file of its own, so that one that is late spoils none.
	draft := fmt.Sprintf("%s.%d", report, lease.Token())
	if err := os.WriteFile(draft, []byte(text.String()), 0o644); err != nil {
		return err
	}
	return os.Rename(draft, report)
}
