package flawed

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
)

var z191 = Lock{
	ID: "Z191", Title: "a look that is answered from what the process knows",
	Summary: "Who has released the key is shown as its holder for the rest of the TTL, in the process that released it.",
	Seen:    "A map of the client's own holds, which spares a request and which Release does not clear.",
	Instead: "The server's answer, always.",
	File:    "release_stays_in_cache.go", Over: Memory,
	Rule: "InspectShows",
	On: onMemory(func(m primitives) backend.Backend {
		return &ownHolds{primitives: m, Inspector: m.Backend.(backend.Inspector)}
	}),
}

// ownHolds shows what its client has held, where the server shows nobody.
//
//	A: Acquire("ledger", WithTTL(time.Minute)); Release
//	A: lockctl inspect ledger: "held by A", for a minute
//	B: lockctl inspect ledger: "free"
//
// Caught by InspectShows.
type ownHolds struct {
	primitives
	backend.Inspector
	released sync.Map // the last record by key
}

// ownHold is a record and when it ends.
type ownHold struct {
	backend.Record
	end time.Time
}

// Release implements backend.Backend.
func (o *ownHolds) Release(ctx context.Context, h backend.Hold) error {
	rec, looked := o.Inspector.Inspect(ctx, h.Key)
	err := o.primitives.Release(ctx, h)
	if err == nil && looked == nil {
		o.released.Store(h.Key, ownHold{rec, time.Now().Add(rec.Remaining)})
	}
	return err
}

// Inspect implements backend.Inspector.
func (o *ownHolds) Inspect(ctx context.Context, key string) (backend.Record, error) {
	rec, err := o.Inspector.Inspect(ctx, key)
	if kept, ok := o.released.Load(key); ok && errors.Is(err, backend.ErrNotHeld) {
		own := kept.(ownHold)
		if own.Remaining = time.Until(own.end); own.Remaining > 0 {
			return own.Record, nil
		}
	}
	return rec, err
}
