package flawed

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock"
)

var z83 = Lock{
	ID: "Z83", Title: "a maximum hold that the wait uses up",
	Summary: "The time limit for holding runs while its caller waits.",
	Seen:    "Time limits on the context of the whole operation.",
	Instead: "Start the clock when the lock was granted.",
	File:    "max_hold_from_wait.go", Over: Memory,
	Rule: "MaxHoldEnds",
	On:   asLocker(func(l *lock.Client) lock.Locker { return limitedFromWait{policy{l}} }),
}

// limitedFromWait starts the clock of the maximum with the call.
//
//	A, 12:00: Acquire("export", WithMaxHold(10*time.Minute)) begins to wait
//	A, 12:08: granted, and works
//	A, 12:10: its lease ends, after two minutes of ten
//
// The longer the queue, the less those at its end can do. Caught by MaxHoldEnds, whose
// holder has waited first.
//
// Instead: the maximum is of the hold.
type limitedFromWait struct{ policy }

// Acquire implements lock.Locker.
func (l limitedFromWait) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	set, err := lock.ResolveOptions(opts...)
	if err != nil || set.MaxHold == 0 {
		return l.policy.Acquire(ctx, key, opts...)
	}
	start := time.Now()
	lease, err := l.policy.Acquire(ctx, key, but(opts, func(s *lock.Settings) { s.MaxHold = 0 })...)
	if err != nil {
		return nil, err
	}
	limited, end := limitable(lease)
	time.AfterFunc(time.Until(start.Add(set.MaxHold)), end)
	return limited, nil
}

// limitable is a lease that end ends because of its maximum hold.
func limitable(lease lock.Lease) (limited lock.Lease, end func()) {
	ctx, cancel := context.WithCancelCause(lease.Context())
	return limitedLease{withContext{lease, ctx}}, func() {
		if ctx.Err() == nil {
			cancel(lock.ErrMaxHold)
			_ = lease.Release(context.Background())
		}
	}
}

type limitedLease struct{ withContext }

// Release implements lock.Lease. What its maximum hold has ended was not released before.
func (l limitedLease) Release(ctx context.Context) error {
	err := l.withContext.Release(ctx)
	if cause := context.Cause(l.Context()); errors.Is(cause, lock.ErrMaxHold) {
		return cause
	}
	return err
}
