package flawed

import (
	"context"
	"errors"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z149 = Lock{
	ID: "Z149", Title: "renewals without an answer that are called a takeover",
	Summary: "The network is down, and the log says that somebody else has taken the lock.",
	Seen:    "Watchdogs with one message for every end of their loop.",
	Instead: "A takeover is what the server says. What ends without its answer has expired.",
	File:    "no_answer_is_takeover.go", Over: Memory,
	Rule: "LostWhenCutOff",
	Also: []string{"MaxHoldEnds", "CloseEndsHolds"}, // on a machine that stands still
	On: onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker {
		return changed{policy{l}, func(lease lock.Lease, set lock.Settings) lock.Lease {
			if set.NoRenewal {
				return lease
			}
			own, end := ownContext(lease, func(cause error) bool { return !ranOut(cause) })
			own.ctx = takenOver{own.ctx, lease, end}
			context.AfterFunc(lease.Context(), func() { _ = own.ctx.Err() })
			return endsItself{own, end}
		}}
	}),
}

// ranOut is what the watchdog of z149 takes for a takeover. Leases that nothing renews are
// told the truth.
//
//	A's network fails; three renewals have no answer, and the lease runs out
//	A's log: "lost: the record was removed or replaced"
//	on call: who has the lock now? Nobody has
//
// Caught by LostWhenCutOff.
func ranOut(cause error) bool { return errors.Is(cause, lock.ErrExpired) }
