package flawed

import (
	"context"
	"errors"

	"github.com/mortiselock/lock"
)

var z152 = Lock{
	ID: "Z152", Title: "a second release that is well where there is a label",
	Summary: "Whoever releases twice by mistake is not told, for some leases.",
	Seen:    "A record that is rewritten as \"released by\" for those who look, so that it is found a second time.",
	Instead: "A release counts once, whatever the lease has besides.",
	File:    "labelled_release_again.go", Over: Memory,
	Rule: "ReleaseTwice",
	On: asLocker(func(l *lock.Client) lock.Locker {
		return changed{policy{l}, func(lease lock.Lease, set lock.Settings) lock.Lease {
			if set.Label == "" {
				return lease
			}
			return releasedAgain{lease}
		}}
	}),
}

// releasedAgain finds what its first release has left.
//
//	A: Acquire("ledger", WithLabel("nightly run"))
//	A: Release() -> no error
//	A, by mistake: Release() -> no error, and the mistake stays
//
// Caught by ReleaseTwice, which releases each kind of lease twice.
type releasedAgain struct{ lock.Lease }

// Release implements lock.Lease.
func (r releasedAgain) Release(ctx context.Context) error {
	before := errors.Is(context.Cause(r.Context()), lock.ErrReleased)
	err := r.Lease.Release(ctx)
	if before {
		return nil
	}
	return err
}
