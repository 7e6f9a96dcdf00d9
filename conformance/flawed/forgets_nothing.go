package flawed

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	memlock "github.com/mortiselock/lock/memory"
)

var z131 = Lock{
	ID: "Z131", Title: "a clean-up that removes nothing",
	Summary: "What is kept of unused keys stays, though the clean-up returns no error, and the table grows.",
	Seen:    "Deletes in a transaction that is rolled back with its connection.",
	Instead: "Commit; count what was removed.",
	File:    "forgets_nothing.go", Over: Memory,
	Rule: "ForgetLeavesOthers",
	On:   onRows(func(r *keptRows) backend.Backend { return rollsBack{r} }),
}

// onRows makes a client of a store that keeps a row of each key.
type onRows func(*keptRows) backend.Backend

// Make implements flaw.Maker.
func (on onRows) Make(context.Context, Lock, any) (conformance.Config, error) {
	cfg := inMemory(false, func(b backend.Backend) backend.Backend {
		return on(&keptRows{primitives: primitives{b}, kept: new(sync.Map)})
	})
	cfg.Untouched = func(context.Context) (conformance.Store, error) {
		store, kept := memlock.NewStore(nil), new(sync.Map)
		return conformance.Store{
			Open: func(ctx context.Context) (backend.Backend, error) {
				b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store})
				return on(&keptRows{primitives: primitives{b}, kept: kept}), err
			},
			Contents: func(context.Context) (string, error) {
				var n atomic.Int64
				kept.Range(func(any, any) bool { n.Add(1); return true })
				return fmt.Sprint(n.Load(), " rows"), nil
			},
		}, nil
	}
	return cfg, nil
}

// keptRows is memlock with a row of each key that was granted once.
type keptRows struct {
	primitives
	kept *sync.Map
}

// Try implements backend.Backend.
func (r *keptRows) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := r.primitives.Try(ctx, req)
	if err == nil {
		r.kept.Store(req.Key, g.Token)
	}
	return g, err
}

// rollsBack forgets in a transaction that nobody commits.
//
//	an operator forgets the keys of a customer who has left -> ok
//	a year later the table has ten million rows
//
// Caught by ForgetLeavesOthers, where Config.Untouched tells what is in a store.
type rollsBack struct{ *keptRows }

// Forget implements backend.Forgetter.
func (r rollsBack) Forget(_ context.Context, prefix string) error {
	if prefix == "" {
		return backend.ErrInvalid
	}
	return nil
}
