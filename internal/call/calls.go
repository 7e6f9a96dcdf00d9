// Package call makes calls to a backend that may hang, and clears up after them.
package call

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/joined"
)

// Limit bounds Close, and one release or clean-up request.
const Limit = 5 * time.Second

// RenewalLimit bounds one renewal by a third of the TTL, so that at least two can fail
// before the deadline, and like every request.
func RenewalLimit(ttl time.Duration) time.Duration { return min(ttl/3, Limit) }

// Calls are the calls of one Locker and the goroutines that make them.
type Calls struct {
	Tracker                 // of calls, requests, clean-ups and reports under way
	Open    context.Context // ends when Close begins
	Shut    context.CancelFunc
	Life    context.Context // ends when Close has finished
	Kill    context.CancelFunc

	// Interruptible and Immediate are those of the backend. They are set before the first call.
	Interruptible, Immediate bool

	asking  deadlines // of attempts that only Close ends early
	ending  deadlines // of releases
	workers workers   // for requests whose callers may stop waiting
}

// NewCalls returns the calls of a Locker that is open.
func NewCalls() *Calls {
	c := &Calls{}
	c.Open, c.Shut = context.WithCancel(context.Background())
	c.Life, c.Kill = context.WithCancel(context.Background())
	c.asking.parent, c.ending.parent = c.Open, c.Life
	c.workers = newWorkers(c.Life.Done())
	return c
}

// Here reports whether a call may be made on the goroutine of its caller: the backend is
// interruptible, or the caller's context can't be cancelled, so that there is nothing but
// Close to return early for, and the backend's obedience to its context is enough.
func (c *Calls) Here(caller context.Context) bool { return c.Interruptible || caller.Done() == nil }

// Within returns the context of a call on the goroutine of its caller. It ends with the
// caller's, when the Locker closes, and after the limit if there is one. A request that waits
// for nothing does without.
func (c *Calls) Within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	switch {
	case c.Immediate && limit > 0:
		return ctx, nothing
	case ctx.Done() == nil && limit > 0:
		limited, cancel := c.asking.within(limit)
		return withValues(limited, ctx), cancel
	case ctx.Done() == nil:
		limited, cancel := context.WithCancel(c.Open)
		return withValues(limited, ctx), cancel
	}
	if limit > 0 {
		own, release := c.asking.within(limit)
		return endable(joined.New(ctx, own, release))
	}
	return endable(joined.New(ctx, c.Open, nothing))
}

func endable(c *joined.Context) (context.Context, context.CancelFunc) { return c, c.End }

// ClosedIfUnknown returns ErrClosed for an error that says nothing once Close has begun, or
// that Close may have kept the request from being sent.
func (c *Calls) ClosedIfUnknown(err error) error {
	if err != nil && c.Open.Err() != nil && (!IsKnown(err) || errors.Is(err, backend.ErrNotSent)) {
		return backend.ErrClosed
	}
	return err
}

// Detached returns the context of a release, which the end of the caller's does not reach,
// unless it is to end the request.
func (c *Calls) Detached(ctx context.Context, ends bool) (context.Context, context.CancelFunc) {
	if c.Immediate {
		return withValues(c.Life, ctx), nothing
	}
	limited, cancel := c.ending.within(Limit)
	if ends && ctx.Done() != nil {
		return endable(joined.New(ctx, limited, cancel))
	}
	return withValues(limited, ctx), cancel
}

// withValues returns a context that ends with one of the Locker, and has the values of the
// caller's, if it can have any.
func withValues(own, caller context.Context) context.Context {
	if caller == context.Background() {
		return own
	}
	return openContext{own, caller}
}

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
