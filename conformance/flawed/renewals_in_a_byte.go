package flawed

import (
	"context"
	"fmt"
	"sync"

	"github.com/mortiselock/lock/backend"
)

var z71 = Lock{
	ID: "Z71", Title: "renewals that are counted in a byte",
	Summary: "The 256th renewal and all later ones fail.",
	Seen:    "TINYINT UNSIGNED for counters and versions.",
	Instead: "Count nothing that no decision needs, or in 64 bits.",
	File:    "renewals_in_a_byte.go", Over: Memory,
	Rule: "RenewIdempotentCount",
	On:   onMemory(func(m primitives) backend.Backend { return &inAByte{primitives: m, renewals: map[backend.ID]uint8{}} }),
}

// inAByte counts the renewals of a hold beside it, for the operators.
//
//	UPDATE locks SET ends_at = ..., renewals = renewals + 1 WHERE name = ? AND owner = ?
//	after 21 minutes with a renewal every 5 s: ERROR 1264, Out of range value for column 'renewals'
//
// Caught by RenewIdempotentCount, which renews as often as it has time for.
//
// Instead: leave the counter away.
type inAByte struct {
	primitives
	mu       sync.Mutex
	renewals map[backend.ID]uint8
}

func (b *inAByte) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	b.mu.Lock()
	full := b.renewals[hold.ID] == 255
	if !full {
		b.renewals[hold.ID]++
	}
	b.mu.Unlock()
	if full {
		return backend.Validity{}, fmt.Errorf("%w: out of range value for column 'renewals'", backend.ErrPermanent)
	}
	return b.primitives.Renew(ctx, hold)
}

// Release implements backend.Backend. The counter goes with the record.
func (b *inAByte) Release(ctx context.Context, hold backend.Hold) error {
	b.mu.Lock()
	delete(b.renewals, hold.ID)
	b.mu.Unlock()
	return b.primitives.Release(ctx, hold)
}
