package flawed

import (
	"context"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z16 = Lock{
	ID: "Z16", Title: "renewal without a look at its errors",
	Summary: "Somebody else gets the key, and the holder is never told.",
	Seen:    "_ = client.Expire(...) in a loop; rustfs/rustfs#4388.",
	Instead: "End the hold's context at the deadline of the last confirmed renewal.",
	File:    "errors_ignored.go", Over: Memory,
	Rule: "LostWhenCutOff",
	Also: []string{"LostOnRemoval", "MaxHoldEnds", "ReleaseEndsRequests", "CloseEndsHolds", "CloseTwice", "NoLeak", "ContextEndsFirst", "DeadlineEnds"},
	On:   onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker { return watchdog{policy{l}, renewAndHope} }),
}

// renewAndHope renews, and ends the lease's context with its release only.
//
//	A: acquires job for 10 s, renews every 2 s
//	A's network fails: each renewal ends with an error, which nobody reads
//	A's record expires
//	B: acquires job, works
//	A: works, too; its context is alive until it releases
//
// The loop looks busy and healthy. Caught by LostWhenCutOff, which lets the renewals
// of a holder fail, and asks whether it knows when somebody else is granted the key.
//
// Instead: a timer that is set to the deadline of the last confirmed renewal, so
// that no failing or hanging request can keep it from firing.
func renewAndHope(lease lock.Lease, ttl time.Duration) lock.Lease {
	ctx, released := context.WithCancelCause(context.Background())
	go func() {
		for rest(lease.Context(), ttl/5) {
			_ = lease.Renew(ctx)
		}
	}()
	return hopeful{withContext{lease, ctx}, released}
}

type hopeful struct {
	withContext
	released context.CancelCauseFunc
}

// Release implements lock.Lease.
func (l hopeful) Release(ctx context.Context) error {
	l.released(lock.ErrReleased)
	return l.Lease.Release(ctx)
}
