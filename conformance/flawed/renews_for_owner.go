package flawed

import (
	"context"
	"sync"

	"github.com/mortiselock/lock/backend"
)

var z95 = Lock{
	ID: "Z95", Title: "an owner is renewed, and not its hold",
	Summary: "A dead process's hold lives on another's renewals.",
	Seen:    "A hash with a counter under PEXPIRE.",
	Instead: "An expiry for each hold.",
	File:    "renews_for_owner.go", Over: Memory,
	Rule: "ExpiryIsPerHold",
	Also: []string{"NothingKept"},
	On:   onMemory(func(m primitives) backend.Backend { return ownerRenewed{m} }),
}

// ownerRenewed renews whatever the owner holds of the key.
//
//	A and B: two workers of the order 17, who lock it with the owner "order-17"
//	B: dies; its hold is to end after a TTL
//	A: renews the expiry of the key, and with it B's hold
//	A: releases its own hold; the count is 1, and the key stays held
//	A, next day: works on the order 17 again, and B's hold lives on
//
// As long as the client of the second hold lives, it gives back what has run out, and
// hides it. Caught by ExpiryIsPerHold, whose second client dies.
//
// Instead: renew the hold by its id.
type ownerRenewed struct{ primitives }

// Try implements backend.Backend.
func (o ownerRenewed) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := o.primitives.Try(ctx, req)
	if err == nil && req.Owner != "" {
		ownedBy.add(backend.HoldOf(req), g.Token)
	}
	return g, err
}

// Renew implements backend.Backend.
func (o ownerRenewed) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	v, err := o.primitives.Renew(ctx, hold)
	if err == nil {
		for _, other := range ownedBy.others(hold) {
			_, _ = o.primitives.Renew(ctx, other)
		}
	}
	return v, err
}

// ownedBy is what the owners have held so far.
var ownedBy owned

type owned struct {
	mu    sync.Mutex
	holds map[[2]string][]backend.Hold
}

func (o *owned) add(hold backend.Hold, token uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.holds == nil {
		o.holds = map[[2]string][]backend.Hold{}
	}
	hold.Token = token
	of := [2]string{hold.Key, hold.Owner}
	o.holds[of] = append(o.holds[of], hold)
}

// others are the other holds of the owner, some of which have ended.
func (o *owned) others(hold backend.Hold) []backend.Hold {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]backend.Hold(nil), o.holds[[2]string{hold.Key, hold.Owner}]...)
}
