package flawed

import (
	"context"

	"github.com/mortiselock/lock/backend"
)

var z107 = Lock{
	ID: "Z107", Title: "a lock handed over with what is left",
	Summary: "Whoever is handed the lock gets the last holder's TTL.",
	Seen:    "Hand-overs that write the new owner into the record and leave the rest of it as it is.",
	Instead: "Write the whole record anew: owner, expiry, token, label.",
	File:    "hand_over_keeps_ttl.go", Over: Memory,
	Rule: "HandOverIsOneStep",
	Also: []string{"AcquireKeepsTTL", "EveryTTLLasts", "Exclusive", "ExclusiveAcrossTakeover"},
	On:   onMemory(func(m primitives) backend.Backend { return inheritsTTL{m} }),
}

// inheritsTTL changes the owner of the record.
//
//	A: holds job for 2 s, and releases it; B, of the same process, waits for it with a TTL of 30 s
//	HSET job owner B        -> B is granted the key, for 30 s as it thinks
//	C, 2 s later: SET NX    -> granted, beside B
//
// Caught by HandOverIsOneStep, which hands a key from a short lease to a long one.
//
// Instead: the new lease has nothing of the old one.
type inheritsTTL struct{ primitives }

// HandOver implements backend.HandOverer.
func (i inheritsTTL) HandOver(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
	asked := to.TTL
	to.TTL = from.TTL
	g, err := i.Backend.(backend.HandOverer).HandOver(ctx, from, to)
	if err == nil {
		g.For = backend.ValidFor(asked)
	}
	return g, err
}
