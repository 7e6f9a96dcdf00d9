package flawed

import (
	"context"

	"github.com/mortiselock/lock/backend"
)

var z184 = Lock{
	ID: "Z184", Title: "no answer in time is no hold",
	Summary: "Whoever renews or releases with a context that has ended is told that the hold does not exist, and takes it for lost.",
	Seen:    "Functions that return the number of rows changed, and zero where nothing was sent.",
	Instead: "Return the error of the context. What it means for the hold is not known.",
	File:    "ended_is_not_held.go", Over: Memory,
	Rule: "CancelledSendsNothing",
	On:   onMemory(func(m primitives) backend.Backend { return endedIsNotHeld{m} }),
}

// endedIsNotHeld takes what came to nothing for what there is not.
//
//	A: Release with a context that has ended -> "not held", and A forgets the hold
//	the key is held until its TTL has passed
//
// Caught by CancelledSendsNothing, which looks at the error too.
type endedIsNotHeld struct{ primitives }

// Renew implements backend.Backend.
func (n endedIsNotHeld) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	if ctx.Err() != nil {
		return backend.Validity{}, backend.ErrNotHeld
	}
	return n.primitives.Renew(ctx, hold)
}

// Release implements backend.Backend.
func (n endedIsNotHeld) Release(ctx context.Context, hold backend.Hold) error {
	if ctx.Err() != nil {
		return backend.ErrNotHeld
	}
	return n.primitives.Release(ctx, hold)
}
