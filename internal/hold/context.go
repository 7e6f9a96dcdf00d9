package hold

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// end is the end of a hold: its cause, and the context that tells of it. That is made when
// somebody asks for it, since most holds end before anybody does.
type end struct {
	mu     sync.Mutex
	cause  error // nil while the hold goes on
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// because ends the hold for the cause, unless it has ended before.
func (e *end) because(cause error) {
	e.mu.Lock()
	if e.cause == nil {
		e.cause = cause
	}
	cause, cancel := e.cause, e.cancel
	e.mu.Unlock()
	if cancel != nil {
		cancel(cause)
	}
}

// why is the cause, or nil while the hold goes on.
func (e *end) why() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cause
}

// err is that of the context, without making one.
func (e *end) err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.ctx != nil:
		return e.ctx.Err()
	case e.cause != nil:
		return context.Canceled
	}
	return nil
}

// context is the one that ends with the hold.
func (e *end) context() context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx == nil {
		e.ctx, e.cancel = context.WithCancelCause(context.Background())
		if e.cause != nil {
			e.cancel(e.cause)
		}
	}
	return e.ctx
}

// leaseContext is a lease as the context that ends with the hold. Its Err looks at the
// clock, so that after a pause of the process the first look tells the truth, before any
// timer had a chance to run.
type leaseContext Lease

// Deadline implements context.Context. It is none, since renewals move it.
func (c *leaseContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements context.Context.
func (c *leaseContext) Done() <-chan struct{} { return c.end.context().Done() }

// Value implements context.Context. What package context looks for is there.
func (c *leaseContext) Value(key any) any { return c.end.context().Value(key) }

// Err implements context.Context.
func (c *leaseContext) Err() error {
	if err := c.end.err(); err != nil {
		return err
	}
	if at, over := c.term.read(); !over && c.c.server.Clock.Now() < at {
		return nil
	}
	(*Lease)(c).expire()
	return c.end.err()
}

// Format is that of the lease.
func (c *leaseContext) Format(s fmt.State, _ rune) { fmt.Fprintf(s, "context of the %v", (*Lease)(c)) }

// String is for the names of contexts that are made from it.
func (c *leaseContext) String() string { return fmt.Sprintf("%v", c) }
