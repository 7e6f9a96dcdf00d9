//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/mortiselock/lock"
)

// key is what the copies exclude each other by.
const key = "dispatcher"

// batch is how many tasks are dispatched, or received, at a time.
const batch = 4

// work dispatches and does tasks whenever it holds the key, until ctx ends.
func work(ctx context.Context, locker lock.Locker, tasks store, do func(task int) bool) error {
	for ctx.Err() == nil {
		err := lock.Do(ctx, locker, key, func(ctx context.Context, lease lock.Lease) error {
			return turn(ctx, tasks, lease.Token(), do)
		})
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, lock.ErrPermanent), errors.Is(err, lock.ErrInvalid):
			return err
		case errors.Is(err, lock.ErrLost):
			// The next turn has another token.
		case err != nil:
			fmt.Fprintln(os.Stderr, "dispatcher:", err)
			pause(ctx, 100*time.Millisecond)
		}
	}
	return nil
}

// turn is what one hold of the key is used for. What a predecessor has left goes back to
// those that wait, again and again: one that was paused may wake up and dispatch some more.
// Only where nothing is on the queue more is dispatched, so that little is under way when a
// copy dies.
func turn(ctx context.Context, tasks store, token uint64, do func(task int) bool) error {
	for ctx.Err() == nil {
		if err := tasks.Requeue(ctx, token); err != nil {
			return err
		}
		claims, err := tasks.Receive(ctx)
		if err != nil {
			return err
		}
		for _, c := range claims {
			if ctx.Err() != nil {
				break
			}
			if err := carryOut(ctx, tasks, c, do); err != nil {
				return err
			}
		}
		if len(claims) > 0 {
			continue
		}
		some, err := dispatch(ctx, tasks, token)
		if err != nil {
			return err
		}
		if !some {
			pause(ctx, 5*time.Millisecond)
		}
	}
	return context.Cause(ctx)
}

// dispatch puts some of the tasks that wait on the queue, if there are any.
func dispatch(ctx context.Context, tasks store, token uint64) (some bool, err error) {
	for range batch {
		c, ok, err := tasks.Dispatch(ctx, token, os.Getpid())
		if err != nil || !ok {
			return some, err
		}
		if err := send(ctx, tasks, c); err != nil {
			return some, err
		}
		some = true
	}
	return some, nil
}

// send sends each seventh claim twice, as happens where the answer of a queue is lost.
func send(ctx context.Context, tasks store, c claim) error {
	if c.Task%7 == 0 {
		if err := tasks.Send(ctx, c); err != nil {
			return err
		}
	}
	return tasks.Send(ctx, c)
}

// carryOut does what was received. It may have been done before, or been dispatched anew.
// What was begun is finished also when the hold is lost meanwhile: the work can't be taken
// back, and the store knows whether it counts.
func carryOut(ctx context.Context, tasks store, c claim, do func(task int) bool) error {
	ctx = context.WithoutCancel(ctx)
	err := tasks.Begin(ctx, c)
	if err == nil {
		err = tasks.Finish(ctx, c, do(c.Task))
	}
	if err != nil && !errors.Is(err, errNotOurs) {
		return err
	}
	return tasks.Ack(ctx, c)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
