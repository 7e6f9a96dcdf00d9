package flawed

import (
	"context"
	"fmt"
	"time"

	"github.com/mortiselock/lock/backend"
)

var z150 = Lock{
	ID: "Z150", Title: "an owner's entry that was cut off counts as unsent",
	Summary: "A hold that nobody knows of keeps the key when its owner has released all that it knows of.",
	Seen:    "Re-entry as a path of its own, with an error handling of its own.",
	Instead: "Say that nothing was sent only where the write has not begun, on every path.",
	File:    "cut_entry_is_unsent.go", Over: Memory,
	Rule: "NotSentIsTrue",
	On:   onMemory(func(m primitives) backend.Backend { return cutEntryIsUnsent{m} }),
}

// cutEntryIsUnsent concludes from the end of the context, where an owner enters once more.
//
//	A: Try("ledger", owner batch) -> granted, one hold
//	A: Try(ctx, "ledger", owner batch); ctx ends meanwhile -> "nothing was sent", and two holds
//	A: Release -> ok, and one hold is left, which lasts for its TTL
//
// Caught by NotSentIsTrue, which has owners enter and leave beside another hold.
type cutEntryIsUnsent struct{ primitives }

// Try implements backend.Backend.
func (c cutEntryIsUnsent) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := c.primitives.Try(ctx, req)
	if err != nil || g.Holds < 2 {
		return g, err
	}
	rest(ctx, time.Millisecond) // the way of the answer
	if ended := ctx.Err(); ended != nil {
		return backend.Grant{}, fmt.Errorf("%w: %w", backend.ErrNotSent, ended)
	}
	return g, nil
}
