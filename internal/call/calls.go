// Package call makes calls to a backend that may hang, and clears up after them.
package call

import (
	"context"
	"time"

	"github.com/mortiselock/lock/backend"
)

// Limit bounds Close, and one release or clean-up request.
const Limit = 5 * time.Second

// Calls are the calls of one Locker and the goroutines that make them.
type Calls struct {
	Tracker                 // of calls, requests, clean-ups and reports under way
	Open    context.Context // ends when Close begins
	Shut    context.CancelFunc
	Life    context.Context // ends when Close has finished
	Kill    context.CancelFunc

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

// Here returns the context of a call on the goroutine of a caller whose context can't be
// cancelled. It ends when the Locker closes, and after the limit if there is one.
func (c *Calls) Here(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if limit <= 0 {
		limited, cancel := context.WithCancel(c.Open)
		return openContext{limited, ctx}, cancel
	}
	limited, cancel := c.asking.within(limit)
	return openContext{limited, ctx}, cancel
}

// ClosedIfUnknown returns ErrClosed for an error that says nothing once Close has begun.
func (c *Calls) ClosedIfUnknown(err error) error {
	if err != nil && c.Open.Err() != nil && !IsKnown(err) {
		return backend.ErrClosed
	}
	return err
}

// Detached returns the context of a release, which the end of the caller's does not reach.
func (c *Calls) Detached(ctx context.Context) (context.Context, context.CancelFunc) {
	limited, cancel := c.ending.within(Limit)
	return openContext{limited, ctx}, cancel
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
