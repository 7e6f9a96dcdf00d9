package flawed

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
)

var z156 = Lock{
	ID: "Z156", Title: "a refusal shows the TTL of the grant",
	Summary: "The holder's owner has entered again for an hour; others read that the key is free in ten seconds at the latest.",
	Seen:    "The TTL is a column that the grant writes; the longer one of a later hold goes to the server's timer only.",
	Instead: "Write the longer TTL where refusals read it.",
	File:    "time_of_the_grant.go", Over: Memory,
	Rule: "HeldDetails",
	On:   onMemory(func(m primitives) backend.Backend { return timeOfTheGrant{m, grantedFor} }),
}

// grantedFor is the TTLs of grants, by key.
var grantedFor = new(sync.Map)

// timeOfTheGrant shows of each holder the TTL with which the key was granted to it.
//
//	A, as "job": granted for 10 s; enters again, for an hour
//	B: refused, "for another 10 s at most"
//
// Holders who enter once, and owners who enter for no longer, show the right time. Caught by
// HeldDetails, which looks at the longer of an owner's two holds in both orders.
type timeOfTheGrant struct {
	primitives
	granted *sync.Map
}

// Try implements backend.Backend.
func (l timeOfTheGrant) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := l.primitives.Try(ctx, req)
	if err == nil && g.Holds == 1 {
		l.granted.Store(req.Key, req.TTL)
	}
	if held := (*backend.HeldError)(nil); errors.As(err, &held) {
		ttl, _ := l.granted.Load(req.Key)
		told := *held
		if first, ok := ttl.(time.Duration); ok {
			told.Remaining = min(told.Remaining, first)
		}
		err = &told
	}
	return g, err
}
