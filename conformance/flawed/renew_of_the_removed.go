package flawed

import (
	"context"
	"errors"

	"github.com/mortiselock/lock"
)

var z103 = Lock{
	ID: "Z103", Title: "a renewal of what was removed",
	Summary: "Renewing a lease whose record an operator has deleted returns no error.",
	Seen:    "Wrappers that swallow errors of which \"the watchdog takes care\"; ShedLock's keep-alive, whose extension of a lost lock was a log line.",
	Instead: "Return what the server says. Only a renewal that was confirmed has no error.",
	File:    "renew_of_the_removed.go", Over: Memory,
	Rule: "LostOnRemoval",
	Also: []string{"RevokeByToken", "LossEndsUse", "ReleaseBesideRenewal"},
	On:   asLocker(func(l *lock.Client) lock.Locker { return removedIsFine{policy{l}} }),
}

// removedIsFine leaves losses to whoever watches the context.
//
//	A: holds job; an operator deletes its record, and B is granted the key
//	A: before its last step, to be sure: lease.Renew() -> no error
//	A and B both write
//
// Caught by LostOnRemoval, which renews once more.
//
// Instead: pass the error on.
type removedIsFine struct{ policy }

// Acquire implements lock.Locker.
func (r removedIsFine) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return renewsQuietly(r.policy.Acquire(ctx, key, opts...))
}

// TryAcquire implements lock.Locker.
func (r removedIsFine) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return renewsQuietly(r.policy.TryAcquire(ctx, key, opts...))
}

func renewsQuietly(lease lock.Lease, err error) (lock.Lease, error) {
	if err != nil {
		return nil, err
	}
	return quietRenewal{lease}, nil
}

type quietRenewal struct{ lock.Lease }

// Renew implements lock.Lease.
func (q quietRenewal) Renew(ctx context.Context) error {
	err := q.Lease.Renew(ctx)
	if errors.Is(err, lock.ErrTakenOver) {
		return nil
	}
	return err
}
