package flawed

import (
	"context"
	"errors"
	"fmt"

	"github.com/mortiselock/lock"
)

var z104 = Lock{
	ID: "Z104", Title: "a cause in place of the context's error",
	Summary: "A cancelled wait returns the cause, which nobody takes for a cancellation.",
	Seen:    "Code that replaced ctx.Err() by context.Cause(ctx) when Go 1.20 came, so that errors.Is(err, context.Canceled) is false.",
	Instead: "Return ctx.Err(), with the cause beside it at most.",
	File:    "cause_for_error.go", Over: Memory,
	Rule: "WaiterGivesUp",
	On:   asLocker(func(l *lock.Client) lock.Locker { return tellsTheCause{policy{l}} }),
}

// tellsTheCause says why the context has ended, and not that it has.
//
//	A: Acquire(ctx, "job"), and waits
//	a server shuts down: cancel(errShutdown)
//	A: returns errShutdown; its caller, who stops quietly on context.Canceled, raises an alarm
//
// A context without a cause has its error for one, so that tests without causes pass.
// Caught by WaiterGivesUp, some of whose contexts end with a cause.
//
// Instead: ctx.Err().
type tellsTheCause struct{ policy }

// Acquire implements lock.Locker.
func (t tellsTheCause) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	lease, err := t.policy.Acquire(ctx, key, opts...)
	var held *lock.HeldError
	if err != nil && ctx.Err() != nil && errors.As(err, &held) {
		return nil, fmt.Errorf("%w: %w", context.Cause(ctx), held)
	}
	return lease, err
}
