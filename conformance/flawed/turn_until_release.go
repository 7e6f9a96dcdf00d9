package flawed

import (
	"context"
	"errors"
	"sync"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z136 = Lock{
	ID: "Z136", Title: "a turn that only a release ends",
	Summary: "Who waits in the process of a holder that never releases waits for ever, though the lease has run out.",
	Seen:    "A mutex for each key beside the distributed lock, so that callers of one process don't all ask the server.",
	Instead: "The turn ends with the context of the lease.",
	File:    "turn_until_release.go", Over: Memory,
	Rule: "LossEndsUse",
	Also: []string{
		"Progress", "SilenceIsNotHeld", "WaitOutlastsTTL", "MaxHoldEnds", "WithoutRenewalEnds", "AcquireKeepsTTL", "ContextEndsFirst",
		"HeldDetails", "CancelHarmsNobody", "WaiterGivesUp", "WaiterOrderLocal", "NoLockstep", "TryBesideWaiters", "ManyWaiters",
		"ProgressUnderFaults", "LostOnRemoval", "UnavailableIsTold", "NoLeak", "WaiterWakes", "WakesAtAnyMoment", "GaveUpWakesNext",
	},
	On: onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker {
		return &untilRelease{asking: newAsking(l, nowAndThen), taken: map[string]chan struct{}{}}
	}),
}

// untilRelease has a mutex for each key, which Acquire locks and Release unlocks.
//
//	A: Acquire("job", WithMaxHold(time.Minute)) -> granted, and hangs
//	a minute later the lease has ended, and everybody else may have the key
//	B, in the same process: Acquire("job") waits for A's mutex
//
// Tests of a loss use two processes. Caught by LossEndsUse, which waits in one.
type untilRelease struct {
	*asking
	mu    sync.Mutex
	taken map[string]chan struct{}
}

// Acquire implements lock.Locker.
func (u *untilRelease) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	if err := lock.ValidateKey(key); err != nil || ctx.Err() != nil {
		return u.asking.Acquire(ctx, key, opts...)
	}
	turn, leave := u.turn(key)
	defer leave()
	for {
		if ctx.Err() != nil {
			return nil, gaveUp(ctx, turn.known(key))
		}
		u.mu.Lock()
		released := u.taken[key]
		if released == nil {
			u.taken[key] = make(chan struct{})
		}
		u.mu.Unlock()
		if released == nil {
			break
		}
		select {
		case <-released:
		case <-ctx.Done():
			return nil, gaveUp(ctx, turn.known(key))
		case <-u.life.Done():
			return nil, lock.ErrClosed
		}
	}
	unlock := sync.OnceFunc(func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		close(u.taken[key])
		delete(u.taken, key)
	})
	lease, err := u.asking.Acquire(ctx, key, opts...)
	if err != nil {
		unlock()
		return nil, err
	}
	context.AfterFunc(lease.Context(), func() {
		if !errors.Is(context.Cause(lease.Context()), lock.ErrLost) {
			unlock()
		}
	})
	return unlocks{lease, unlock}, nil
}

type unlocks struct {
	lock.Lease
	unlock func()
}

// Release implements lock.Lease.
func (u unlocks) Release(ctx context.Context) error {
	defer u.unlock()
	return u.Lease.Release(ctx)
}
