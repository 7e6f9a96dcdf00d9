package flawed

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock"
)

var z146 = Lock{
	ID: "Z146", Title: "a deadline that the maximum does not end",
	Summary: "A hold that has reached its maximum is over, and says that it is certain for another TTL.",
	Seen:    "A deadline that is the last renewal plus the TTL, computed where it is asked for.",
	Instead: "What ends the hold ends its deadline, and the maximum is no exception.",
	File:    "deadline_after_max_hold.go", Over: Memory,
	Rule: "MaxHoldEnds",
	On: asLocker(func(l *lock.Client) lock.Locker {
		return changed{policy{l}, func(lease lock.Lease, set lock.Settings) lock.Lease {
			if set.MaxHold == 0 {
				return lease
			}
			return renewedLast{lease, time.Now().Add(set.MaxHold + TTL)}
		}}
	}),
}

// renewedLast computes the deadline from the last renewal, which was a moment before the
// maximum.
//
//	A: Acquire("report", WithMaxHold(time.Minute)) -> granted
//	a minute later the key is given back; B: Acquire("report") -> granted
//	A: time.Until(deadline) is 14 s, enough for one more page
//
// Caught by MaxHoldEnds, which asks when the maximum was reached.
type renewedLast struct {
	lock.Lease
	last time.Time
}

// Deadline implements lock.Lease.
func (r renewedLast) Deadline() (time.Time, bool) {
	if ctx := r.Context(); ctx.Err() != nil && errors.Is(context.Cause(ctx), lock.ErrMaxHold) {
		return r.last, true
	}
	return r.Lease.Deadline()
}
