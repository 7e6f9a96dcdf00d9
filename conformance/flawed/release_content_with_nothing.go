package flawed

import (
	"context"
	"errors"

	"github.com/mortiselock/lock"
)

var z143 = Lock{
	ID: "Z143", Title: "a release that is content when nothing is left",
	Summary: "The record was gone before the work was done, and the last chance to say so returns no error.",
	Seen:    "Releases that count the deleted rows and ignore the count, since \"the lock is free, which was the aim\".",
	Instead: "A release that finds no hold returns ErrLost: exclusion was not kept for the whole time.",
	File:    "release_content_with_nothing.go", Over: Memory,
	Rule: "ReleaseReportsLoss",
	On: asLocker(func(l *lock.Client) lock.Locker {
		return changed{policy{l}, func(lease lock.Lease, _ lock.Settings) lock.Lease { return contentRelease{lease} }}
	}),
}

// contentRelease tells of a loss that was known before, and of no other.
//
//	A: Acquire("ledger") -> granted
//	an operator removes the record; B: Acquire("ledger") -> granted
//	A writes its last row before its next renewal, and: Release() -> no error
//
// A holder whose context has ended knows anyway. Caught by ReleaseReportsLoss, which has one
// release before anybody can have told it.
type contentRelease struct{ lock.Lease }

// Release implements lock.Lease.
func (c contentRelease) Release(ctx context.Context) error {
	alive := c.Context().Err() == nil
	err := c.Lease.Release(ctx)
	if alive && errors.Is(err, lock.ErrLost) {
		return nil
	}
	return err
}
