package flawed

import (
	"context"
	"errors"
	"fmt"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z189 = Lock{
	ID: "Z189", Title: "one reason for an error",
	Summary: "Who waits behind a holder when the server goes away is told of the holder only.",
	Seen:    "A switch that makes one error of the first kind that matches.",
	Instead: "Wrap all that is known.",
	File:    "one_reason.go", Over: Memory,
	Rule: "UnavailableIsTold",
	On:   onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker { return oneReason{policy{l}} }),
}

// oneReason tidies up what its callers are told.
//
//	A: waits for job, which B holds
//	the server goes away, for an hour; B ends, and its lease too
//	A, when it gives up: "held by B"
//
// A's alarm says that B hangs, and nobody looks at the server. Caught by UnavailableIsTold,
// which has the server go away when a waiter has been refused.
type oneReason struct{ policy }

// Acquire implements lock.Locker.
func (o oneReason) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	lease, err := o.policy.Acquire(ctx, key, opts...)
	if held := (*lock.HeldError)(nil); ctx.Err() != nil && errors.As(err, &held) {
		return nil, fmt.Errorf("%w: %w", ctx.Err(), held)
	}
	return lease, err
}
