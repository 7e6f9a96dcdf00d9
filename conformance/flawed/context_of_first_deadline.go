package flawed

import (
	"context"
	"time"

	"github.com/mortiselock/lock"
)

var z142 = Lock{
	ID: "Z142", Title: "a context with the deadline of the grant",
	Summary: "Whoever renews by hand keeps the lock, and its work is cancelled when the first TTL is over.",
	Seen:    "context.WithDeadline of the answer to the first request, as a lease's own context: it cannot be moved.",
	Instead: "A timer that each confirmed renewal moves.",
	File:    "context_of_first_deadline.go", Over: Memory,
	Rule: "RenewByHand",
	On:   asLocker(func(l *lock.Client) lock.Locker { return changed{policy{l}, endsAtFirst} }),
}

// endsAtFirst has a lease that is not renewed automatically end when its grant would have.
//
//	A: Acquire("import", WithTTL(15*time.Second), WithoutRenewal()) -> granted
//	A, every 5 s, between two files: Renew() -> ok
//	15 s after the grant the context ends, with ErrExpired, and the server keeps the key for A
//
// Who renews by hand mostly looks at what Renew returns. Caught by RenewByHand, which looks
// at the context too.
func endsAtFirst(lease lock.Lease, set lock.Settings) lock.Lease {
	d, known := lease.Deadline()
	if !set.NoRenewal || set.MaxHold > 0 || !known {
		return lease
	}
	own, end := ownContext(lease, func(error) bool { return true })
	timer := time.AfterFunc(time.Until(d), func() { end(lock.ErrExpired) })
	context.AfterFunc(own.ctx, func() { timer.Stop() })
	return endsItself{own, end}
}
