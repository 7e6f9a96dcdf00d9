package flawed

import (
	"context"
	"sync"

	"github.com/mortiselock/lock/backend"
)

var z126 = Lock{
	ID: "Z126", Title: "a repeat that is dated anew",
	Summary: "The second answer to one request says a whole TTL from now, and the record has what was left of the first.",
	Seen:    "if owner == mine { return granted(now, ttl) }, in scripts that were to be idempotent.",
	Instead: "Extend the record where the answer says so.",
	File:    "repeat_dated_anew.go", Over: Memory,
	Rule: "TryIdempotent",
	Also: []string{"OwnGrantRecognised", "GrantWithinValidity", "ServerOutlivesD", "CrashBetweenSteps"},
	On:   onMemory(func(m primitives) backend.Backend { return datedAnew{m, new(sync.Map)} }),
}

// datedAnew finds its own record, and is content.
//
//	A: SET import a NX PX 10000 -> the answer is lost
//	A, 9 s later, by the retry of its client: the record is a's own -> "granted for 10 s"
//	a second later B: granted. A thinks that it has 9 s more
//
// Caught by TryIdempotent, which repeats a request when half of its TTL has passed.
type datedAnew struct {
	primitives
	grants *sync.Map // by the id of the request
}

// Try implements backend.Backend.
func (d datedAnew) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if first, repeated := d.grants.Load(req.ID); repeated && ctx.Err() == nil {
		again := first.(backend.Grant)
		rec, err := d.Backend.(backend.Inspector).Inspect(ctx, req.Key)
		if err == nil && rec.Token == again.Token {
			again.Sent, again.Holds = d.Clock().Now(), rec.Holds
			return again, nil
		}
	}
	g, err := d.primitives.Try(ctx, req)
	if err == nil {
		d.grants.Store(req.ID, g)
	}
	return g, err
}

// Release implements backend.Backend.
func (d datedAnew) Release(ctx context.Context, h backend.Hold) error {
	d.grants.Delete(h.ID)
	return d.primitives.Release(ctx, h)
}
