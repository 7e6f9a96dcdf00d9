package flawed

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/mortiselock/lock/backend"
)

var z25 = Lock{
	ID: "Z25", Title: "the token is fetched with a request of its own",
	Summary: "Tokens are drawn in one order and grants made in another.",
	Seen:    "INCR, then SET NX as before.",
	Instead: "Raise the counter in the step that grants.",
	File:    "token_before_grant.go", Over: Redis,
	Rule: "TokenInGrantOrder",
	Also: []string{"TryIdempotent", "TokenInTakeoverOrder", "TokenSurvivesRelease", "TokenIncreases"},
	On:   onRedis(func(s single) backend.Backend { return tokenBeforeGrant{fenced{s}} }),
}

// tokenBeforeGrant draws a token, and then tries to get the key.
//
//	A: INCR job:token          -> 7, and stands still for a moment
//	B: INCR job:token          -> 8
//	B: SET job b NX PX 10000   -> OK, writes with 8, releases
//	A: SET job a NX PX 10000   -> OK, and holds, with 7
//	A: writes with 7, which the store refuses: it has seen 8
//
// The other order is worse: who is granted the key and stands still before its
// INCR comes back with a larger token than the holder that has followed. Caught by
// TokenInGrantOrder, where many compete.
//
// Instead: one script for both.
type tokenBeforeGrant struct{ fenced }

func (t tokenBeforeGrant) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	token, err := t.rdb.Incr(ctx, t.counter(req.Key)).Uint64()
	if err != nil {
		return backend.Grant{}, err
	}
	time.Sleep(rand.N(5 * time.Millisecond)) // the network is not always equally fast
	g, err := t.single.Try(ctx, req)
	g.Token = token
	return g, err
}
