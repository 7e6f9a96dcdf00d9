package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/spf13/cobra"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

func newWaitCommand(p *printer) *cobra.Command {
	var timeout time.Duration
	cmd := operate(p, &cobra.Command{
		Use:   "wait [flags] KEY",
		Short: "Wait until nobody holds a key, without taking it",
		Long: `Wait until nobody holds KEY. It is not taken, so somebody else may have it a moment
later: to do something while it is yours, use lockctl run.

The exit status is 0 when the key is free and 75 when --timeout has passed.`,
		Example: `  lockctl wait nightly && echo "the nightly job has ended"
  lockctl wait --timeout 10m deploy`,
		Args: oneKey,
	}, func(ctx context.Context, o *operation, b backend.Backend, args []string) error {
		if o.flags.Changed("timeout") {
			if timeout < 0 {
				return usageError("--timeout %s is negative", timeout)
			}
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, timeout)
			defer cancel()
		}
		return o.wait(ctx, b, args[0], timeout)
	})
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "how long to wait; 0 looks once (default without limit)")
	return cmd
}

// pollEvery is how often a key is looked at, beside what a watch tells.
const pollEvery = time.Second

func (o *operation) wait(ctx context.Context, b backend.Backend, key string, timeout time.Duration) error {
	in, err := ability[backend.Inspector](b, "show who holds a key")
	if err != nil {
		return err
	}
	hints := make(<-chan backend.Hint) // silent, without a watch
	if w, ok := backend.As[backend.Watcher](b); ok {
		if watched, err := w.Watch(ctx, key); err == nil {
			hints = watched
		}
	}
	var last backend.Record
	var seen time.Time // when it was looked at
	var trouble error  // the server has not answered since
	for {
		look, cancel := context.WithTimeout(context.WithoutCancel(ctx), operateLimit)
		rec, err := in.Inspect(look, key)
		cancel()
		switch {
		case errors.Is(err, lock.ErrNotHeld):
			if last.Key == "" {
				o.hint()
			}
			if o.json {
				return o.print(shown{Key: key})
			}
			return nil
		case err == nil:
			last, seen, trouble = rec, time.Now(), nil
		case errors.Is(err, lock.ErrPermanent), errors.Is(err, lock.ErrInvalid), errors.Is(err, lock.ErrUnsupported):
			return operateError(err, key)
		default:
			if trouble == nil {
				o.printer.warn(fmt.Sprintf("the backend does not answer, and is asked again: %s", plain(err)))
			}
			trouble = err
		}
		next := time.NewTimer(min(pollEvery, max(last.Remaining, 20*time.Millisecond)) + rand.N(pollEvery/10))
		select {
		case _, open := <-hints:
			if !open {
				hints = nil // the polling goes on
			}
		case <-next.C:
		case <-ctx.Done():
		}
		next.Stop()
		if status, signalled := signalStatus(ctx); signalled {
			return exitWith(status, "%v, while waiting for %q", context.Cause(ctx), key)
		} else if err := ctx.Err(); err != nil && trouble != nil {
			return operateError(trouble, key)
		} else if err != nil {
			if o.json {
				now := time.Now()
				last.Remaining = max(last.Remaining-now.Sub(seen), 0)
				if err := o.print(show(last, now)); err != nil {
					return err
				}
			}
			if timeout == 0 {
				return exitWith(exitHeld, "%q is held by %s", key, last.Holder)
			}
			return exitWith(exitHeld, "%q is still held, after a wait of %s, by %s", key, timeout, last.Holder)
		}
	}
}
