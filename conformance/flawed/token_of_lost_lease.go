package flawed

import (
	"context"
	"errors"

	"github.com/mortiselock/lock"
)

var z120 = Lock{
	ID: "Z120", Title: "a lost lease without a token",
	Summary: "A holder that is late writes with token 0, which resources take for a writer without a lock.",
	Seen:    "Leases that clear their fields when they end.",
	Instead: "The token is a fact about the grant; leave it alone.",
	File:    "token_of_lost_lease.go", Over: Memory,
	Rule: "LossEndsUse",
	Also: []string{"TokenInTakeoverOrder", "TokenSurvivesRelease", "TokenSurvivesIdling", "ReentrantAfterLoss", "MaxHoldEnds", "LostOnRemoval"},
	On: asLocker(func(l *lock.Client) lock.Locker {
		return changed{policy{l}, func(lease lock.Lease, _ lock.Settings) lock.Lease { return cleared{lease} }}
	}),
}

// cleared forgets its token with its loss.
//
//	A: granted with token 7, stands still for longer than its TTL, and is lost
//	B: granted with token 8, writes
//	A: write(x, lease.Token()) -> token 0: "not under a lock", and is accepted
//
// Caught by LossEndsUse, which compares the token after the loss with that before.
type cleared struct{ lock.Lease }

// Token implements lock.Lease.
func (c cleared) Token() uint64 {
	if errors.Is(context.Cause(c.Context()), lock.ErrLost) {
		return 0
	}
	return c.Lease.Token()
}
