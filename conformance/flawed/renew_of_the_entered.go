package flawed

import (
	"context"
	"errors"
	"sync"

	"github.com/mortiselock/lock/backend"
)

var z180 = Lock{
	ID: "Z180", Title: "a renewal that enters again",
	Summary: "A hold that has run out comes back with the next renewal, because its owner has another, and stays when all are released.",
	Seen:    "HSET or an upsert of the expiry, under a condition on the owner of the record.",
	Instead: "Make the condition that of the hold: its id, and its own expiry.",
	File:    "renew_of_the_entered.go", Over: Memory,
	Rule: "RenewByID",
	On:   onMemory(func(m primitives) backend.Backend { return &renewOfTheEntered{primitives: m} }),
}

// renewOfTheEntered lets an owner who holds the key renew whatever it names.
//
//	A, as "job": two holds; the second runs out
//	A: Renew(second) -> ok, since the record is that of "job"
//	A: Release(first); B: Try -> refused
//
// Owners who enter once see nothing of it. Caught by RenewByID, which renews what has run out
// or never was beside another hold of the same owner.
type renewOfTheEntered struct {
	primitives
	entered sync.Map // the owner of a key, as the last grant said
}

// Try implements backend.Backend.
func (r *renewOfTheEntered) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := r.primitives.Try(ctx, req)
	if err == nil && req.Owner != "" && g.Holds > 1 {
		r.entered.Store(req.Key, req.Owner)
	}
	return g, err
}

// Renew implements backend.Backend.
func (r *renewOfTheEntered) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	v, err := r.primitives.Renew(ctx, hold)
	owner, _ := r.entered.Load(hold.Key)
	if !errors.Is(err, backend.ErrNotHeld) || hold.Owner == "" || owner != hold.Owner {
		return v, err
	}
	again := backend.Request{Key: hold.Key, ID: hold.ID, Owner: hold.Owner, TTL: hold.TTL}
	g, err := r.primitives.Try(ctx, again)
	if err != nil {
		return backend.Validity{}, backend.ErrNotHeld
	}
	if g.Holds == 1 { // there was no record
		_ = r.primitives.Release(ctx, hold)
		return backend.Validity{}, backend.ErrNotHeld
	}
	return g.Validity, nil
}
