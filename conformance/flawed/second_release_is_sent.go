package flawed

import (
	"context"
	"errors"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z157 = Lock{
	ID: "Z157", Title: "a release with an ended context that does not look",
	Summary: "A deferred release after an early one asks the server for a hold that is gone, whenever the work was cancelled.",
	Seen:    "A clean-up for cancelled work, on a path of its own past the state of the lease.",
	Instead: "Whether a lease has been released is known before the context matters: look there first.",
	File:    "second_release_is_sent.go", Over: Memory,
	Rule: "ReleaseTwiceSendsNothing",
	On: onPolicy(func(l *lock.Client, b backend.Backend) lock.Locker {
		return changed{policy{l}, func(lease lock.Lease, _ lock.Settings) lock.Lease {
			held, _ := lock.HeldOn[backend.Backend](lease)
			return cleansUp{lease, b, held.Hold}
		}}
	}),
}

// cleansUp has a path for callers whose contexts have ended: it sends a release without
// looking.
//
//	A: lease, err := locker.Acquire(ctx, "job"); defer lease.Release(ctx)
//	A: the work is done; lease.Release(ctx), to be early -> no error
//	A: the request ends, and with it ctx
//	A: the deferred Release(ctx) -> ErrNotHeld, as it should be, after a request to the server
//
// With a server that hangs, each of these waits for nothing. Caught by
// ReleaseTwiceSendsNothing, which counts what is sent.
type cleansUp struct {
	lock.Lease
	backend backend.Backend
	hold    backend.Hold
}

// Release implements lock.Lease.
func (c cleansUp) Release(ctx context.Context) error {
	again := errors.Is(context.Cause(c.Context()), lock.ErrReleased)
	err := c.Lease.Release(ctx)
	if again && ctx.Err() != nil {
		_ = c.backend.Release(context.WithoutCancel(ctx), c.hold)
	}
	return err
}
