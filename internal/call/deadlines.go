package call

import (
	"context"
	"sync/atomic"
	"time"
)

// deadlines makes contexts for calls that begin at about the same time one context: a
// context of its own has a timer and a place among its parent's children. What that takes,
// package joined says.
type deadlines struct {
	parent context.Context
	last   atomic.Pointer[sharedDeadline]
}

// sharedDeadline ends by itself or with its parent, and not when a call returns.
type sharedDeadline struct {
	context.Context
	end   context.CancelFunc
	limit time.Duration
	since time.Time
}

// deadlineShare is the part of the limit by which a shared deadline may come early.
// It also bounds how many contexts there are at a time.
const deadlineShare = 20

// within returns a context that ends with the parent, or after the limit, or up to a
// twentieth of it earlier, and what to call when it is no longer needed.
func (d *deadlines) within(limit time.Duration) (context.Context, context.CancelFunc) {
	now := time.Now()
	last := d.last.Load()
	fresh := last != nil && now.Sub(last.since) < last.limit/deadlineShare
	if fresh && last.limit == limit {
		return last, nothing
	}
	ctx, cancel := context.WithTimeout(d.parent, limit)
	if !fresh && d.last.CompareAndSwap(last, &sharedDeadline{Context: ctx, end: cancel, limit: limit, since: now}) {
		return ctx, nothing
	}
	return ctx, cancel
}

func nothing() {}
