package call

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
)

// ErrStopped is what Bounded returns when it stopped waiting because of done.
var ErrStopped = errors.New("lock: stopped waiting for the server")

// Bounded calls f and returns when f does, when ctx ends, or when done is closed,
// whichever is first. Client libraries often do not watch the context of a
// request in flight; here is the one place that makes up for it. When Bounded
// gave up waiting, late (if not nil) is told what f returned in the end. Close
// waits for f and late, so the caller is one that Close waits for too.
func Bounded[T any](ctx context.Context, c *Calls, done <-chan struct{}, late func(T, error), f func(context.Context) (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	answers := make(chan answer, 1)
	var settled atomic.Bool // by whoever is first: the answer, or the end of the wait
	c.Follow()
	c.workers.run(func() {
		defer c.Done()
		v, err := f(ctx)
		if settled.CompareAndSwap(false, true) {
			answers <- answer{v, err}
		} else if late != nil {
			late(v, err)
		}
	})
	var gaveUp error
	select {
	case a := <-answers:
		return a.v, a.err
	case <-ctx.Done():
		gaveUp = ctx.Err()
	case <-done:
		gaveUp = ErrStopped
	}
	if !settled.CompareAndSwap(false, true) {
		a := <-answers
		return a.v, a.err
	}
	var zero T
	return zero, gaveUp
}

// WhileOpen is Bounded for calls that end with ErrClosed when the Locker closes.
func WhileOpen[T any](ctx context.Context, c *Calls, late func(T, error), f func(context.Context) (T, error)) (T, error) {
	v, err := Bounded(ctx, c, c.Open.Done(), late, f)
	if err == ErrStopped {
		err = backend.ErrClosed
	}
	return v, err
}

// Ask makes a call that ends with ErrClosed when the Locker closes, for at most the limit
// if there is one: on the caller's goroutine where that is possible, else bounded.
func Ask[T any](ctx context.Context, c *Calls, limit time.Duration, late func(T, error), f func(context.Context) (T, error)) (T, error) {
	if c.Here(ctx) {
		limited, cancel := c.Within(ctx, limit)
		defer cancel()
		v, err := f(limited)
		return v, c.ClosedIfUnknown(err)
	}
	var limited context.Context
	var cancel context.CancelFunc
	if limit > 0 {
		limited, cancel = context.WithTimeout(ctx, limit)
	} else {
		limited, cancel = context.WithCancel(ctx)
	}
	defer cancel()
	return WhileOpen(limited, c, late, f)
}
