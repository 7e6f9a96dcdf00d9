package flawed

import (
	"context"

	"github.com/mortiselock/lock"
)

var z28 = Lock{
	ID: "Z28", Title: "the hold lives on the context of the acquiring call",
	Summary: "The time limit for getting the lock ends the lock.",
	Seen:    "cilium/cilium#12619 (a time limit on etcd's concurrency.NewSession).",
	Instead: "That context bounds the call only.",
	File:    "hold_tied_to_context.go", Over: Memory,
	Rule: "HoldOutlivesAcquireCtx",
	Also: []string{
		"NothingKept", "TTLRange", "EndedContexts",
		"ReleaseTwice", "ReleaseFrees", "ReleaseIsNoLoss", "RenewAfterRelease", "TokenStable",
		"HandsOut", "ReleaseDetached", "NoLeak", "CancelDuring", "CancelHarmsNobody", "WaiterDeathHarmless",
		"HeldDetails", "Progress", "AcquireKeepsTTL", "RenewKeeps", "WithoutRenewalEnds", "MaxHoldEnds", "GrantIsUsable", "GaveUpWakesNext",
		"ReentrantCount", "ReentrantSameToken", "ReentrantOverWaiters", "ReentrantOwnLeases", "LostOnRemoval",
	},
	On: asLocker(func(l *lock.Client) lock.Locker { return tiedToContext{policy{l}} }),
}

// tiedToContext lets go of the key when the context of the acquiring call ends.
//
//	A: ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
//	A: Acquire(ctx, "job")     -> granted after a second
//	A: works; four seconds later the context ends, and the key is let go
//	B: Acquire                 -> granted, while A works
//
// The caller wanted to wait for five seconds at most, not to hold for five. With
// `defer cancel()` in a helper function the hold ends even before the caller has
// it. Caught by HoldOutlivesAcquireCtx.
//
// Instead: use the context for the call only, and detach what lives longer.
type tiedToContext struct{ policy }

// Acquire implements lock.Locker.
func (l tiedToContext) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return tie(ctx)(l.policy.Acquire(ctx, key, opts...))
}

// TryAcquire implements lock.Locker.
func (l tiedToContext) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return tie(ctx)(l.policy.TryAcquire(ctx, key, opts...))
}

func tie(ctx context.Context) func(lock.Lease, error) (lock.Lease, error) {
	return func(lease lock.Lease, err error) (lock.Lease, error) {
		if err == nil {
			context.AfterFunc(ctx, func() { _ = lease.Release(context.WithoutCancel(ctx)) })
		}
		return lease, err
	}
}
