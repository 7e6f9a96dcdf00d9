package flawed

import (
	"context"
	"errors"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
)

var z01 = Lock{
	ID: "Z01", Title: "SETNX alone",
	Summary: "The record has no expiry: a holder that dies keeps the key for ever.",
	Seen:    "Redis's documentation of SETNX, first half; bbangert/beaker#163.",
	Instead: "SET name id NX PX ttl.",
	File:    "setnx_only.go", Over: Redis,
	Rule: "CrashFrees",
	Also: append([]string{"CrashBetweenSteps", "WakesAtAnyMoment"}, takeovers...),
	On:   onRedis(func(s single) backend.Backend { return setnxOnly{s} }),
}

// setnxOnly takes the key with SETNX and never gives it an expiry.
//
//	A: SETNX job a   -> 1, A works
//	A: is killed, or loses its network for good
//	B: SETNX job b   -> 0, and 0 again for ever
//
// Nothing is wrong until somebody dies, so tests that release every lock pass.
// Caught by CrashFrees: it abandons a hold, and waits for the TTL.
//
// Instead: SET name id NX PX ttl. A holder that needs longer renews.
type setnxOnly struct{ single }

func (s setnxOnly) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	sent := now()
	taken, err := s.rdb.SetNX(ctx, s.name(req.Key), req.ID.Hex(), 0).Result() // no expiry
	switch {
	case err != nil:
		return backend.Grant{}, err
	case taken:
		return granted(sent, req.TTL), nil
	}
	v, err := s.Renew(ctx, backend.HoldOf(req))
	if errors.Is(err, backend.ErrNotHeld) {
		err = held(req.Key)
	}
	return backend.Grant{Holds: 1, Validity: v}, err
}

// Renew only looks, since there is nothing to extend.
func (s setnxOnly) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	sent := now()
	id, err := s.rdb.Get(ctx, s.name(hold.Key)).Result()
	if errors.Is(err, goredis.Nil) {
		err = nil
	}
	return renewed(sent, hold.TTL, id == hold.ID.Hex(), err)
}
