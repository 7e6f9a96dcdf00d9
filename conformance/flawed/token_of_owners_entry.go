package flawed

import (
	"context"
	"errors"

	"github.com/mortiselock/lock"
)

var z155 = Lock{
	ID: "Z155", Title: "a token that goes with an owner's hold",
	Summary: "What an owner writes late has no token, and is not refused.",
	Seen:    "Tokens that are read from the entry of the owner, which is gone by then.",
	Instead: "A lease keeps the token that it was granted with.",
	File:    "token_of_owners_entry.go", Over: Memory,
	Rule: "LossEndsUse",
	On: asLocker(func(l *lock.Client) lock.Locker {
		return changed{policy{l}, func(lease lock.Lease, set lock.Settings) lock.Lease {
			if set.Owner == "" {
				return lease
			}
			return tokenOfEntry{lease}
		}}
	}),
}

// tokenOfEntry has no token when the lease has run out.
//
//	A: Acquire("ledger", WithOwner("batch")) -> token 7
//	the lease runs out; B: Acquire("ledger") -> token 8
//	A writes with token 0, which the store takes for a writer without a lock
//
// Caught by LossEndsUse.
type tokenOfEntry struct{ lock.Lease }

// Token implements lock.Lease.
func (t tokenOfEntry) Token() uint64 {
	if errors.Is(context.Cause(t.Context()), lock.ErrExpired) {
		return 0
	}
	return t.Lease.Token()
}
