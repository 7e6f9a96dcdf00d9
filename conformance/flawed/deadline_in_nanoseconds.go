package flawed

import (
	"context"

	"github.com/mortiselock/lock"
)

var z188 = Lock{
	ID: "Z188", Title: "a deadline in nanoseconds since 1970",
	Summary: "A deadline after the year 2262 has passed already, so a call that should never give up gives up at once.",
	Seen:    "deadline.UnixNano() < now.UnixNano(), where \"no deadline\" is a time far away.",
	Instead: "Compare times as times, and let the context end the call.",
	File:    "deadline_in_nanoseconds.go", Over: Memory,
	Rule: "EndlessContexts",
	On:   asLocker(func(l *lock.Client) lock.Locker { return nanoseconds{policy{l}} }),
}

// nanoseconds looks at the deadline of a call before it sends anything.
//
//	A: ctx, cancel := context.WithDeadline(ctx, endOfTime)
//	A: locker.Acquire(ctx, "job")
//	A: endOfTime.UnixNano() does not fit into 64 bits, and is negative
//	A: context deadline exceeded, with the key free
//
// Caught by EndlessContexts.
//
// Instead: compare times as times, and let the context end the call.
type nanoseconds struct{ policy }

// Acquire implements lock.Locker.
func (l nanoseconds) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	if end, ok := ctx.Deadline(); ok && end.UnixNano() <= 0 {
		return nil, context.DeadlineExceeded
	}
	return l.policy.Acquire(ctx, key, opts...)
}

// TryAcquire implements lock.Locker.
func (l nanoseconds) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	if end, ok := ctx.Deadline(); ok && end.UnixNano() <= 0 {
		return nil, context.DeadlineExceeded
	}
	return l.policy.TryAcquire(ctx, key, opts...)
}
