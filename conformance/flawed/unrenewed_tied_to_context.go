package flawed

import (
	"context"

	"github.com/mortiselock/lock"
)

var z153 = Lock{
	ID: "Z153", Title: "a try without renewal that lives on its caller's context",
	Summary: "The time limit of a call ends the lease, where no goroutine renews it.",
	Seen:    "A watchdog with a context of its own, and for leases without one the context that is at hand.",
	Instead: "Each lease has a context of its own.",
	File:    "unrenewed_tied_to_context.go", Over: Memory,
	Rule: "HoldOutlivesAcquireCtx",
	On:   asLocker(func(l *lock.Client) lock.Locker { return unrenewedTied{policy{l}} }),
}

// unrenewedTied lets go of what a try has got when its context ends.
//
//	A: TryAcquire(ctx, "job", WithoutRenewal()) -> granted, in a helper with a `defer cancel()`
//	the helper returns; B: TryAcquire("job") -> granted, while A works
//
// Caught by HoldOutlivesAcquireCtx, which ends the contexts of all kinds of calls.
type unrenewedTied struct{ policy }

// TryAcquire implements lock.Locker.
func (u unrenewedTied) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	set, _ := lock.ResolveOptions(opts...)
	lease, err := u.policy.TryAcquire(ctx, key, opts...)
	if err == nil && set.NoRenewal {
		return tie(ctx)(lease, nil)
	}
	return lease, err
}
