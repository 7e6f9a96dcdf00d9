package flawed

import (
	"context"

	"github.com/mortiselock/lock"
)

var z41Panic = Lock{
	ID: "Z41", Title: "a second release that panics",
	Summary: "Closing a channel twice takes the program down.",
	Seen:    "close(l.done) in an unlock that is deferred and also called.",
	Instead: "A second release answers not held.",
	File:    "second_release_panics.go", Over: Memory,
	Rule: "ReleaseTwice",
	Also: []string{
		"EndedContexts", "MaxHoldEnds", "LostOnRemoval",
		"ReleaseOwnOnly", "ReleaseOldLeaseSameClient", "ReleaseReportsLoss", "LossEndsUse", "CauseIsStable", "ReentrantCount",
		"ReentrantOwnLeases", "NoSecretsInErrors", "LeaseConcurrent", "ErrorsAreTyped", "CloseEndsHolds",
		"DeadlineEnds",
	},
	On: asLocker(func(l *lock.Client) lock.Locker { return closesChannel{policy{l}} }),
}

// closesChannel tells the goroutine that renews a lease of its end by closing a
// channel.
//
//	A: lease, err := locker.Acquire(ctx, "job")
//	A: defer lease.Release(ctx)
//	A: the work is done; lease.Release(ctx), to be early
//	A: return, and the deferred Release: panic: close of closed channel
//
// Both calls are good style. Caught by ReleaseTwice.
//
// Instead: make the end of a lease a state that can be asked for, and entered once.
type closesChannel struct{ policy }

// Acquire implements lock.Locker.
func (l closesChannel) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	lease, err := l.policy.Acquire(ctx, key, opts...)
	return closing(lease, err)
}

// TryAcquire implements lock.Locker.
func (l closesChannel) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	lease, err := l.policy.TryAcquire(ctx, key, opts...)
	return closing(lease, err)
}

func closing(lease lock.Lease, err error) (lock.Lease, error) {
	if err != nil {
		return nil, err
	}
	return closingLease{lease, make(chan struct{})}, nil
}

type closingLease struct {
	lock.Lease
	done chan struct{}
}

// Release implements lock.Lease.
func (l closingLease) Release(ctx context.Context) error {
	close(l.done)
	return l.Lease.Release(ctx)
}
