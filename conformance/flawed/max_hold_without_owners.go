package flawed

import (
	"context"

	"github.com/mortiselock/lock"
)

var z100 = Lock{
	ID: "Z100", Title: "a maximum hold that owners escape",
	Summary: "With an owner the option for the longest hold is ignored.",
	Seen:    "Options that are honoured one by one and never together: a branch for re-entry that was added later, with a request of its own.",
	Instead: "Apply what ends a lease where leases are made, once for all of them.",
	File:    "max_hold_without_owners.go", Over: Memory,
	Rule: "MaxHoldEnds",
	On:   asLocker(func(l *lock.Client) lock.Locker { return ownersUnlimited{policy{l}} }),
}

// ownersUnlimited re-enters in a branch that knows the key, the owner and the TTL.
//
//	A: Acquire("ledger", WithOwner("batch"), WithMaxHold(time.Minute)) -> granted, and hangs
//	A's watchdog renews for ever; nobody ends the hold after a minute
//
// Each option has a test, which uses that option alone. Caught by MaxHoldEnds, which sets
// a maximum beside an owner, and beside a lease that is not renewed.
//
// Instead: one place where the timer starts.
type ownersUnlimited struct{ policy }

func noMaxForOwners(opts []lock.Option) []lock.Option {
	if set, err := lock.ResolveOptions(opts...); err != nil || set.Owner == "" {
		return opts
	}
	return but(opts, func(s *lock.Settings) { s.MaxHold = 0 })
}

// Acquire implements lock.Locker.
func (o ownersUnlimited) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return o.policy.Acquire(ctx, key, noMaxForOwners(opts)...)
}

// TryAcquire implements lock.Locker.
func (o ownersUnlimited) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return o.policy.TryAcquire(ctx, key, noMaxForOwners(opts)...)
}
