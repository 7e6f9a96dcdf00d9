package lock

import (
	"context"
	"errors"
	"fmt"
)

// Do acquires the key, calls fn and releases the key, whether fn returns or
// panics. The context of fn carries the values of ctx and ends when ctx ends or
// when the hold is lost, whichever is first; context.Cause then tells which. fn
// must stop when its context ends: from then on another holder may run.
//
// Do waits for the key as Acquire does. Its error joins that of fn with that of
// the release, so that errors.Is(err, ErrLost) tells that the hold ended while fn
// was running, even if fn succeeded. Where fn returns why the hold ended, it is
// said once.
func Do(ctx context.Context, l Locker, key string, fn func(ctx context.Context, lease Lease) error, opts ...Option) error {
	lease, err := l.Acquire(ctx, key, opts...)
	if err != nil {
		return err
	}
	return whileHeld(ctx, lease, fn)
}

// TryDo is Do with TryAcquire: when somebody else holds the key it returns an
// error matching ErrHeld at once, and fn is not called. It is the form for a job
// that one copy of a service should do and the others should skip.
func TryDo(ctx context.Context, l Locker, key string, fn func(ctx context.Context, lease Lease) error, opts ...Option) error {
	lease, err := l.TryAcquire(ctx, key, opts...)
	if err != nil {
		return err
	}
	return whileHeld(ctx, lease, fn)
}

func whileHeld(ctx context.Context, lease Lease, fn func(ctx context.Context, lease Lease) error) (err error) {
	work, end := context.WithCancelCause(ctx)
	wc := workContext{work, lease.Context(), end}
	stop := context.AfterFunc(lease.Context(), wc.end)
	finished := false
	defer func() {
		stop()
		end(context.Canceled)
		rel := lease.Release(ctx)
		if !finished {
			// fn panicked or called runtime.Goexit, which goes on with its own word.
			return
		}
		switch why := context.Cause(lease.Context()); {
		case rel == nil:
		case err != nil && errors.Is(err, why) && errors.Is(rel, why):
			err = fmt.Errorf("lock: %q: %w", lease.Key(), err)
		default:
			err = errors.Join(err, fmt.Errorf("lock: after the work: %w", rel))
		}
	}()
	err = fn(wc, lease)
	finished = true
	return err
}

// workContext ends with the caller's context or with the hold. Its Err asks the
// lease's context first, so that a pause of the process is noticed at the first
// look.
type workContext struct {
	context.Context
	hold   context.Context
	cancel context.CancelCauseFunc
}

func (c workContext) Err() error {
	if c.hold.Err() != nil {
		c.end()
	}
	return c.Context.Err()
}

// Format prints it with every verb in the same way.
func (c workContext) Format(s fmt.State, _ rune) { fmt.Fprintf(s, "work under the %v", c.hold) }

// String is for the names of contexts that are made from it.
func (c workContext) String() string { return fmt.Sprintf("%v", c) }

func (c workContext) end() { c.cancel(context.Cause(c.hold)) }
