package flawed

import (
	"context"

	"github.com/mortiselock/lock"
)

var z81 = Lock{
	ID: "Z81", Title: "who has waited is renewed, asked or not",
	Summary: "WithoutRenewal has no effect on a lease that was waited for.",
	Seen:    "Watchdogs that are started where the wait ends.",
	Instead: "Start what renews in one place.",
	File:    "acquire_always_renews.go", Over: Memory,
	Rule: "WithoutRenewalEnds",
	Also: []string{"AcquireKeepsTTL", "Linearizable", "LossEndsUse", "TTLGrain", "LostByDeadline", "ServerOutlivesD"},
	On:   asLocker(func(l *lock.Client) lock.Locker { return renewsWaiters{policy{l}} }),
}

// renewsWaiters starts its watchdog at the end of every wait.
//
//	A: Acquire("report", WithTTL(time.Minute), WithoutRenewal()) -> granted
//	A: hangs in a request that has no time limit
//	the watchdog renews, every twenty seconds, for a week
//	B: Acquire("report") -> waits for a week
//
// The caller has asked for a lease that ends by itself, because it may hang. Caught by
// WithoutRenewalEnds, which tries the option by every way to a lease.
//
// Instead: ask the settings.
type renewsWaiters struct{ policy }

// Acquire implements lock.Locker.
func (l renewsWaiters) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return l.policy.Acquire(ctx, key, but(opts, func(s *lock.Settings) { s.NoRenewal = false })...)
}
