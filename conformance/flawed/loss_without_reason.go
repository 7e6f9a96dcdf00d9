package flawed

import (
	"context"
	"errors"
	"fmt"

	"github.com/mortiselock/lock"
)

var z139 = Lock{
	ID: "Z139", Title: "a loss without its reason",
	Summary: "All that a holder learns is that it has lost, and on call nobody knows whether to look at the network or for a colleague.",
	Seen:    "Lost channels that are closed and carry nothing (Consul's api.Lock, kazoo's states).",
	Instead: "A reason for each place in the code that ends a hold.",
	File:    "loss_without_reason.go", Over: Memory,
	Rule: "LostOnRemoval",
	Also: []string{"LostByDeadline", "MaxHoldEnds"},
	On: asLocker(func(l *lock.Client) lock.Locker {
		return changed{policy{l}, func(lease lock.Lease, _ lock.Settings) lock.Lease {
			own, end := ownContext(lease, func(cause error) bool { return !errors.Is(cause, lock.ErrLost) })
			own.ctx = onlyLost{own.ctx, lease, end}
			context.AfterFunc(lease.Context(), func() { _ = own.ctx.Err() })
			return endsItself{own, end}
		}}
	}),
}

// onlyLost is the context of a lease whose channel of loss carries nothing.
//
//	an operator removes the record
//	A: <-lost; A's log: "lock lost"
//	the network is searched for a fault until morning
//
// Caught by LostOnRemoval.
type onlyLost struct {
	context.Context
	lease lock.Lease
	end   context.CancelCauseFunc
}

// Format implements fmt.Formatter, as for withContext.
func (o onlyLost) Format(s fmt.State, _ rune) { fmt.Fprint(s, "context of ", o.lease.Key()) }

// Err implements context.Context.
func (o onlyLost) Err() error {
	if o.lease.Context().Err() != nil && errors.Is(context.Cause(o.lease.Context()), lock.ErrLost) {
		o.end(lock.ErrLost)
	}
	return o.Context.Err()
}
