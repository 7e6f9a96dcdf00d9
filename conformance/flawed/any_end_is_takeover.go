package flawed

import (
	"context"
	"errors"
	"fmt"

	"github.com/mortiselock/lock"
)

var z124 = Lock{
	ID: "Z124", Title: "an expiry that is called a takeover",
	Summary: "A holder whose renewals failed is told that somebody removed its record, and people look for who did.",
	Seen:    "One error for every end that is not a release.",
	Instead: "ErrExpired where the holder's own clock has ended the lease.",
	File:    "any_end_is_takeover.go", Over: Memory,
	Rule: "LostByDeadline",
	Also: []string{"MaxHoldEnds"},
	On: asLocker(func(l *lock.Client) lock.Locker {
		return changed{policy{l}, func(lease lock.Lease, _ lock.Settings) lock.Lease {
			own, end := ownContext(lease, func(cause error) bool { return !errors.Is(cause, lock.ErrExpired) })
			own.ctx = takenOver{own.ctx, lease, end}
			context.AfterFunc(lease.Context(), func() { _ = own.ctx.Err() })
			return endsItself{own, end}
		}}
	}),
}

// takenOver is the context of a lease that knows one reason.
//
//	the server is away for a minute, and A's lease runs out
//	A's log: "lost: the record was removed or replaced"
//	on call: who runs the clean-up script by hand?
//
// Caught by LostByDeadline.
type takenOver struct {
	context.Context
	lease lock.Lease
	end   context.CancelCauseFunc
}

// Format implements fmt.Formatter, as for withContext.
func (t takenOver) Format(s fmt.State, _ rune) { fmt.Fprint(s, "context of ", t.lease.Key()) }

// Err implements context.Context.
func (t takenOver) Err() error {
	if errors.Is(context.Cause(t.lease.Context()), lock.ErrExpired) && t.lease.Context().Err() != nil {
		t.end(lock.ErrTakenOver)
	}
	return t.Context.Err()
}
