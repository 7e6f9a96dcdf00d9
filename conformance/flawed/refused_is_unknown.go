package flawed

import (
	"context"
	"fmt"

	"github.com/mortiselock/lock/backend"
)

var z111 = Lock{
	ID: "Z111", Title: "Every error may be a grant",
	Summary: "The server is down, and every caller is told that it may have the lock.",
	Seen:    "One error for a command that was never sent and for one without an answer (simstudioai/sim#7669).",
	Instead: "Say \"may have\" when something was sent, and \"not reached\" otherwise.",
	File:    "refused_is_unknown.go", Over: Redis,
	Rule: "RefusedIsNotUnknown",
	On:   onNetwork(func(s single) backend.Backend { return refusedIsUnknown{s} }),
}

// refusedIsUnknown does not look at what kind of error the client returns.
//
//	the server is stopped
//	A: SET job a NX PX 10000 -> dial tcp: connection refused
//	A: "outcome unknown", again and again
//
// Whoever may hold the lock has to look what it did, or wait until that is over: an outage
// sends every caller there, though nothing has happened. Caught by RefusedIsNotUnknown.
type refusedIsUnknown struct{ single }

func (s refusedIsUnknown) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	sent := now()
	taken, err := s.rdb.SetNX(ctx, s.name(req.Key), req.ID.Hex(), req.TTL).Result()
	switch {
	case err != nil:
		return backend.Grant{}, fmt.Errorf("%w: %w", backend.ErrOutcomeUnknown, err)
	case taken:
		return granted(sent, req.TTL), nil
	}
	return s.repeat(ctx, req)
}
