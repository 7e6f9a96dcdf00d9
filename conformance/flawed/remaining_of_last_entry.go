package flawed

import (
	"context"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
)

var z133 = Lock{
	ID: "Z133", Title: "a remaining time that is that of the last entry",
	Summary: "Who looks is told that the key will be free in a second, and an owner's longer hold goes on.",
	Seen:    "One field for the expiry of the record, beside those of its holds.",
	Instead: "The latest expiry of all holds.",
	File:    "remaining_of_last_entry.go", Over: Memory,
	Rule: "InspectShows",
	On:   onMemory(func(m primitives) backend.Backend { return lastExpiry{m, m.Backend.(backend.Inspector), expiries} }),
}

// expiries is when the last entries end, by key.
var expiries = new(sync.Map)

// lastExpiry shows when the last entry ends.
//
//	A: Acquire("ledger", WithOwner("batch"), WithTTL(time.Minute))
//	A: Acquire("ledger", WithOwner("batch"), WithTTL(time.Second))
//	an operator: "free in a second", and waits in vain
//
// Caught by InspectShows.
type lastExpiry struct {
	primitives
	backend.Inspector
	last *sync.Map
}

// Try implements backend.Backend.
func (l lastExpiry) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := l.primitives.Try(ctx, req)
	if err == nil {
		l.last.Store(req.Key, time.Now().Add(req.TTL))
	}
	return g, err
}

// Inspect implements backend.Inspector.
func (l lastExpiry) Inspect(ctx context.Context, key string) (backend.Record, error) {
	rec, err := l.Inspector.Inspect(ctx, key)
	if end, ok := l.last.Load(key); ok && err == nil && rec.Holds > 1 {
		rec.Remaining = max(time.Millisecond, time.Until(end.(time.Time)))
	}
	return rec, err
}
