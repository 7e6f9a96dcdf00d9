package flawed

import (
	"context"
	"fmt"

	"github.com/mortiselock/lock"
)

var z154 = Lock{
	ID: "Z154", Title: "an owner's renewal that was called off is a loss",
	Summary: "A caller in a hurry stops work whose lock is held.",
	Seen:    "\"if err != nil { return ErrNotHeld }\" around the script that looks for the owner's entry.",
	Instead: "Not held is what the server says, and no other error.",
	File:    "renew_of_owner_called_off.go", Over: Memory,
	Rule: "EndedContexts",
	On: asLocker(func(l *lock.Client) lock.Locker {
		return changed{policy{l}, func(lease lock.Lease, set lock.Settings) lock.Lease {
			if set.Owner == "" {
				return lease
			}
			return calledOff{lease}
		}}
	}),
}

// calledOff takes the end of its caller's context for the server's answer.
//
//	A: Acquire("ledger", WithOwner("batch"))
//	A: Renew(ctx), and ctx has ended -> not held
//	A gives up, and holds the key
//
// Caught by EndedContexts, which renews each kind of lease.
type calledOff struct{ lock.Lease }

// Renew implements lock.Lease.
func (c calledOff) Renew(ctx context.Context) error {
	err := c.Lease.Renew(ctx)
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", c.Key(), lock.ErrNotHeld)
	}
	return err
}
