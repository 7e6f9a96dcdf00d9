package flawed

import (
	"context"
	"sync"

	"github.com/mortiselock/lock/backend"
)

var z132 = Lock{
	ID: "Z132", Title: "the label of whoever entered last",
	Summary: "What is shown of a key names a step that is over, while the job that it was a part of goes on.",
	Seen:    "HSET of the description with every acquisition of an owner.",
	Instead: "Write it with the first hold.",
	File:    "label_of_last_entry.go", Over: Memory,
	Rule: "HolderIsShown",
	Also: []string{"HeldDetails"},
	On:   onMemory(func(m primitives) backend.Backend { return relabels{m, m.Backend.(backend.Inspector), labels} }),
}

// labels is the last entries, by key.
var labels = new(sync.Map)

// relabels shows the description of the last entry.
//
//	A: Acquire("ledger", WithOwner("batch"), WithLabel("nightly run"))
//	A, for one step: Acquire("ledger", WithOwner("batch"), WithLabel("check")), and releases it
//	everybody is refused by "check", which ended an hour ago
//
// Caught by HolderIsShown, whose owner enters with another label.
type relabels struct {
	primitives
	backend.Inspector
	last *sync.Map
}

type labelled struct {
	token uint64
	label string
}

// Try implements backend.Backend.
func (r relabels) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := r.primitives.Try(ctx, req)
	if err == nil {
		r.last.Store(req.Key, labelled{g.Token, req.Holder.Label})
	}
	return g, err
}

// Inspect implements backend.Inspector.
func (r relabels) Inspect(ctx context.Context, key string) (backend.Record, error) {
	rec, err := r.Inspector.Inspect(ctx, key)
	if last, ok := r.last.Load(key); ok && err == nil && last.(labelled).token == rec.Token {
		rec.Holder.Label = last.(labelled).label
	}
	return rec, err
}
