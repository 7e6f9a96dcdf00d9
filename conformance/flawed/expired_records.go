package flawed

import (
	"context"
	"sync"

	"github.com/mortiselock/lock/backend"
)

var z128 = Lock{
	ID: "Z128", Title: "a list that shows what has run out",
	Summary: "Records that nobody took over stay in the list, with holders that have died long ago.",
	Seen:    "SELECT without a condition on the expiry, which only those who acquire compare with the clock.",
	Instead: "WHERE ends_at > now, wherever a record is read.",
	File:    "expired_records.go", Over: Memory,
	Rule: "ListShowsHeldKeys",
	Also: []string{"NoLeak"},
	On:   onMemory(func(m primitives) backend.Backend { return neverSwept{m, m.Backend.(backend.Inspector), swept} }),
}

// swept is the records that were taken and not released, by key.
var swept = new(sync.Map)

// neverSwept deletes a record with its release only.
//
//	A: granted for 10 s, and dies
//	a day later an operator lists the locks: A holds "import"
//	the operator frees it by force, while B is just being granted it
//
// Caught by ListShowsHeldKeys, which lists after an expiry.
type neverSwept struct {
	primitives
	backend.Inspector
	records *sync.Map
}

// Try implements backend.Backend.
func (n neverSwept) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := n.primitives.Try(ctx, req)
	if err == nil {
		if rec, err := n.Inspect(ctx, req.Key); err == nil {
			n.records.Store(rec.Key, rec)
		}
	}
	return g, err
}

// Release implements backend.Backend.
func (n neverSwept) Release(ctx context.Context, h backend.Hold) error {
	err := n.primitives.Release(ctx, h)
	if err == nil {
		n.records.Delete(h.Key)
	}
	return err
}

// List implements backend.Lister.
func (n neverSwept) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	shown, more := map[string]bool{}, true
	err := n.Backend.(backend.Lister).List(ctx, prefix, func(r backend.Record) bool {
		shown[r.Key], more = true, visit(r)
		return more
	})
	n.records.Range(func(key, rec any) bool {
		k := key.(string)
		if more && !shown[k] && len(k) >= len(prefix) && k[:len(prefix)] == prefix {
			more = visit(rec.(backend.Record))
		}
		return more
	})
	return err
}
