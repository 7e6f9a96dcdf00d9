package flawed

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock"
)

var z102 = Lock{
	ID: "Z102", Title: "a close that ends what is renewed",
	Summary: "Leases that no goroutine renews outlive Close.",
	Seen:    "Clients whose only list of their leases is that of their watchdogs.",
	Instead: "Keep every lease in one list, whether anything renews it or not.",
	File:    "close_keeps_unrenewed.go", Over: Memory,
	Rule: "CloseEndsHolds",
	On:   asLocker(func(l *lock.Client) lock.Locker { return closesRenewed{policy{l}} }),
}

// closesRenewed has a list of watchdogs, and none of leases.
//
//	A: lease := TryAcquire("job", WithoutRenewal()), and works under lease.Context()
//	A: Close() -> releases the key; the watchdogs tell their leases
//	B: TryAcquire("job") -> granted
//	A's work goes on for the rest of its TTL beside B's: its context is alive
//
// Caught by CloseEndsHolds, one of whose leases is not renewed.
//
// Instead: Close goes through all leases.
type closesRenewed struct{ policy }

// Acquire implements lock.Locker.
func (c closesRenewed) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return outlivesClose(opts)(c.policy.Acquire(ctx, key, opts...))
}

// TryAcquire implements lock.Locker.
func (c closesRenewed) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return outlivesClose(opts)(c.policy.TryAcquire(ctx, key, opts...))
}

// outlivesClose makes leases without renewal that hear of everything but Close.
func outlivesClose(opts []lock.Option) func(lock.Lease, error) (lock.Lease, error) {
	return func(lease lock.Lease, err error) (lock.Lease, error) {
		set, bad := lock.ResolveOptions(opts...)
		if err != nil || bad != nil || !set.NoRenewal {
			return lease, err
		}
		own, end := ownContext(lease, func(cause error) bool { return !errors.Is(cause, lock.ErrClosed) })
		d, known := lease.Deadline()
		context.AfterFunc(lease.Context(), func() {
			if known && errors.Is(context.Cause(lease.Context()), lock.ErrClosed) {
				time.AfterFunc(time.Until(d), func() { end(lock.ErrExpired) })
			}
		})
		return endsItself{own, end}, nil
	}
}

// endsItself ends its own context with its release.
type endsItself struct {
	withContext
	end context.CancelCauseFunc
}

// Release implements lock.Lease.
func (l endsItself) Release(ctx context.Context) error {
	err := l.withContext.Release(ctx)
	if cause := context.Cause(l.Lease.Context()); !errors.Is(cause, lock.ErrClosed) {
		l.end(cause)
	}
	return err
}
