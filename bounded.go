package lock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/mortiselock/lock/backend"
)

// direct reports whether a call may be made on the caller's own goroutine: its
// context cannot be cancelled, so there is nothing but Close to return early for,
// and the backend's obedience to its context is enough. That saves two hand-overs
// between goroutines, which a round trip on a local network notices.
func direct(caller context.Context) bool { return caller.Done() == nil }

// openContext ends with one context of the Locker, and has the values of the caller's,
// whose end is not its own.
type openContext struct {
	context.Context
	values context.Context
}

func (c openContext) Value(key any) any {
	if v := c.values.Value(key); v != nil {
		return v
	}
	return c.Context.Value(key)
}

// errStopped is what bounded returns when it stopped waiting because of done.
var errStopped = errors.New("lock: stopped waiting for the server")

// bounded calls f and returns when f does, when ctx ends, or when done is closed,
// whichever is first. Client libraries often do not watch the context of a
// request in flight; here is the one place that makes up for it. When bounded
// gave up waiting, late (if not nil) is told what f returned in the end. Close
// waits for f and late, so the caller is one that Close waits for too.
func bounded[T any](ctx context.Context, c *client, done <-chan struct{}, late func(T, error), f func(context.Context) (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	answers := make(chan answer, 1)
	var settled atomic.Bool // by whoever is first: the answer, or the end of the wait
	c.calls.follow()
	c.callers.run(func() {
		defer c.calls.done()
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
		gaveUp = errStopped
	}
	if !settled.CompareAndSwap(false, true) {
		a := <-answers
		return a.v, a.err
	}
	var zero T
	return zero, gaveUp
}

// whileOpen is bounded for calls that end with ErrClosed when the Locker closes.
func whileOpen[T any](ctx context.Context, c *client, late func(T, error), f func(context.Context) (T, error)) (T, error) {
	v, err := bounded(ctx, c, c.done, late, f)
	if err == errStopped {
		err = ErrClosed
	}
	return v, err
}

// known are the errors of a backend that say that nothing was applied, or that
// say exactly what was.
var known = []error{
	ErrHeld, ErrNotHeld, ErrUnavailable, ErrPermanent, ErrInvalid, ErrUnsupported, ErrTooManyHolds, ErrOutcomeUnknown,
	backend.ErrNotSent,
}

// unknownUnlessKnown marks an error of a backend that does not say what happened
// as an unknown outcome.
func unknownUnlessKnown(err error) error {
	if isAny(err, known) {
		return err
	}
	return fmt.Errorf("%w: %w", backend.ErrOutcomeUnknown, err)
}

// final are the refusals that waiting does not cure.
var final = []error{ErrPermanent, ErrInvalid, ErrUnsupported, ErrTooManyHolds, ErrClosed}

func isAny(err error, targets []error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}
