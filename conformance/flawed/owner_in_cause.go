package flawed

import (
	"context"
	"errors"
	"fmt"

	"github.com/mortiselock/lock"
)

var z123 = Lock{
	ID: "Z123", Title: "a cause that tells the owner",
	Summary: "The error of a hold that ended too early says who held it: whoever reads the log can enter.",
	Seen:    "Messages for the one error that people will look into.",
	Instead: "The label is for people. The owner is a key.",
	File:    "owner_in_cause.go", Over: Memory,
	Rule: "NoSecretsInErrors",
	On:   asLocker(func(l *lock.Client) lock.Locker { return changed{policy{l}, namesOwner} }),
}

// namesOwner tells whose hold has reached its maximum.
//
//	A: Acquire("ledger", WithOwner("batch-7f3a"), WithMaxHold(time.Hour)), and hangs
//	A's log, an hour later: "the hold reached its maximum duration, of batch-7f3a"
//	B, who reads logs: Acquire("ledger", WithOwner("batch-7f3a")) -> granted, in the middle of A's work
//
// Caught by NoSecretsInErrors, which looks at the errors of every end of a hold.
func namesOwner(lease lock.Lease, set lock.Settings) lock.Lease {
	own, end := ownContext(lease, func(cause error) bool { return !errors.Is(cause, lock.ErrMaxHold) })
	context.AfterFunc(lease.Context(), func() {
		end(fmt.Errorf("%w, of %s", context.Cause(lease.Context()), set.Owner))
	})
	return endsItself{own, end}
}
