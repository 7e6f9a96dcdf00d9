package flawed

import (
	"context"

	"github.com/mortiselock/lock"
)

var z41Loss = Lock{
	ID: "Z41", Title: "a release that looks like a loss",
	Summary: "Whoever watches for a loss is alarmed by every release.",
	Seen:    "swarthy/redis-semaphore#205; one channel for release and loss.",
	Instead: "Tell them apart, such as with a cause.",
	File:    "release_tells_of_loss.go", Over: Memory,
	Rule: "ReleaseIsNoLoss",
	// Its leases end by a goroutine of its own, which a busy machine has wait.
	Also: []string{"CauseIsStable", "ReentrantOwnLeases", "CloseEndsHolds", "ReleaseBesideRenewal", "LostBeforeTakeover"},
	On:   asLocker(func(l *lock.Client) lock.Locker { return tellsOfLoss{policy{l}} }),
}

// tellsOfLoss ends the lease's context in the same way, whyever the hold has ended.
//
//	A: acquires job, starts a worker with the lease's context
//	A: the work is done; releases job
//	the worker's clean-up, still running: the lock was lost! rolls back, wakes somebody up
//
// After some such nights the alarm is switched off, and with it that of real losses.
// Caught by ReleaseIsNoLoss, which looks at the cause.
//
// Instead: context.Cause says ErrReleased after a release, and a loss says why.
type tellsOfLoss struct{ policy }

// Acquire implements lock.Locker.
func (l tellsOfLoss) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	lease, err := l.policy.Acquire(ctx, key, opts...)
	return tellLoss(lease, err)
}

// TryAcquire implements lock.Locker.
func (l tellsOfLoss) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	lease, err := l.policy.TryAcquire(ctx, key, opts...)
	return tellLoss(lease, err)
}

func tellLoss(lease lock.Lease, err error) (lock.Lease, error) {
	if err != nil {
		return nil, err
	}
	ctx, lost := context.WithCancelCause(lease.Context())
	return lossTold{withContext{lease, ctx}, lost}, nil
}

type lossTold struct {
	withContext
	lost context.CancelCauseFunc
}

// Release implements lock.Lease.
func (l lossTold) Release(ctx context.Context) error {
	l.lost(lock.ErrLost) // the lock is gone
	return l.Lease.Release(ctx)
}
