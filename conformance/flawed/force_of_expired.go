package flawed

import (
	"context"
	"errors"
	"sync"

	"github.com/mortiselock/lock/backend"
)

var z129 = Lock{
	ID: "Z129", Title: "a forced release of nothing",
	Summary: "An operator is told that a holder was removed that had gone by itself, and waits for the effect of it.",
	Seen:    "DELETE ... WHERE token = ?, on a table whose old rows stay.",
	Instead: "The condition on the expiry belongs into every statement.",
	File:    "force_of_expired.go", Over: Memory,
	Rule: "ForceReleaseByToken",
	On:   onMemory(func(m primitives) backend.Backend { return oldRows{m, m.Backend.(backend.Inspector), rows} }),
}

// rows is the tokens of the rows that were not deleted, by key.
var rows = new(sync.Map)

// oldRows compares the token with that of the row, and nothing with the clock.
//
//	A: granted for 10 s with token 7, and dies
//	an hour later: ForceRelease("import", 7) -> ok
//
// Caught by ForceReleaseByToken, which does so after the expiry.
type oldRows struct {
	primitives
	backend.Inspector
	tokens *sync.Map
}

// Try implements backend.Backend.
func (o oldRows) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := o.primitives.Try(ctx, req)
	if err == nil {
		o.tokens.Store(req.Key, g.Token)
	}
	return g, err
}

// Release implements backend.Backend.
func (o oldRows) Release(ctx context.Context, h backend.Hold) error {
	err := o.primitives.Release(ctx, h)
	if err == nil {
		o.tokens.Delete(h.Key)
	}
	return err
}

// ForceRelease implements backend.ForceReleaser.
func (o oldRows) ForceRelease(ctx context.Context, key string, token uint64) error {
	err := o.Backend.(backend.ForceReleaser).ForceRelease(ctx, key, token)
	_, look := o.Inspect(ctx, key)
	deleted := o.tokens.CompareAndDelete(key, token)
	if errors.Is(err, backend.ErrNotHeld) && errors.Is(look, backend.ErrNotHeld) && deleted {
		return nil
	}
	return err
}
