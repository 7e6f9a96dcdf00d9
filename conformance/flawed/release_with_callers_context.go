package flawed

import (
	"context"
	"fmt"

	"github.com/mortiselock/lock"
)

var z29 = Lock{
	ID: "Z29", Title: "release with the caller's cancelled context",
	Summary: "When the work is cancelled nothing is released.",
	Seen:    "blnkfinance/blnk#354, googleforgames/open-match#1578, authgear/authgear-server#5721.",
	Instead: "Release with context.WithoutCancel and a time limit.",
	File:    "release_with_callers_context.go", Over: Memory,
	Rule: "ReleaseDetached",
	Also: []string{"EndedContexts", "CloseEndsHolds"},
	On:   asLocker(func(l *lock.Client) lock.Locker { return callersContext{policy{l}} }),
}

// callersContext sends the release with the context that the caller passes.
//
//	A: lease, err := locker.Acquire(ctx, "job")
//	A: defer lease.Release(ctx)
//	A: the request is cancelled, the work returns early, as it should
//	A: Release(ctx)   -> context canceled; nothing was sent
//	B: Acquire        -> waits for the TTL, or for ever where A's process renews
//
// The usual way to write a release is the one that fails, and only when something
// else has gone wrong before. Caught by ReleaseDetached.
//
// Instead: a release is clean-up. It goes out whatever has ended before, and is
// bounded by a time limit of its own.
type callersContext struct{ policy }

// Acquire implements lock.Locker.
func (l callersContext) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	lease, err := l.policy.Acquire(ctx, key, opts...)
	return releaseWithCaller(lease, err)
}

// TryAcquire implements lock.Locker.
func (l callersContext) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	lease, err := l.policy.TryAcquire(ctx, key, opts...)
	return releaseWithCaller(lease, err)
}

func releaseWithCaller(lease lock.Lease, err error) (lock.Lease, error) {
	if err != nil {
		return nil, err
	}
	return callersLease{lease}, nil
}

type callersLease struct{ lock.Lease }

// Release implements lock.Lease. It is what a client library does with a context
// that has ended: it sends nothing.
func (l callersLease) Release(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("flawed: releasing %q: %w", l.Key(), err)
	}
	return l.Lease.Release(ctx)
}
