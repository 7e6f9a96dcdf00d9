package flawed

import (
	"context"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
)

var z27 = Lock{
	ID: "Z27", Title: "the token is a floating-point number",
	Summary: "Beyond 2^53 two holders get one token.",
	Seen:    "Tokens composed in Lua, or taken through tostring, which keeps 14 digits.",
	Instead: "INCR, and stay below 2^53.",
	File:    "token_as_float.go", Over: Redis,
	Rule: "TokenIncreases",
	Also: []string{"TokenFits", "TokenSurvivesRelease", "TokenInGrantOrder", "TokenInTakeoverOrder", "TryIdempotent", "TokenStable", "TokenSurvivesLastClose"},
	On:   onRedis(func(s single) backend.Backend { return tokenAsFloat{fenced{s}} }),
}

// tokenAsFloat makes its tokens of the server's time in seconds, so that the loss of
// the counter does no harm, and the counter.
//
//	A: 1700000000 * 2^32 + 41   -> 7301444403200000000
//	A: stands still; its lease runs out
//	B: 1700000000 * 2^32 + 42   -> 7301444403200000000
//	A: wakes up and writes with its token, which is not smaller than B's
//
// A double has 53 bits for 63, so the last ten of the counter are gone. In a test
// with a fresh counter and a small time it works. Caught by TokenIncreases.
//
// Instead: the server's time in microseconds has 51 bits; the larger of that and
// of the counter plus one is a token that survives, too.
type tokenAsFloat struct{ fenced }

var grantWithFloat = goredis.NewScript(`
	local holder = redis.call('GET', KEYS[1])
	if holder and holder ~= ARGV[1] then return 0 end
	redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
	return redis.call('TIME')[1] * 4294967296 + redis.call('INCR', KEYS[2])`)

func (t tokenAsFloat) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	sent := now()
	token, err := grantWithFloat.Run(ctx, t.rdb, []string{t.name(req.Key), t.counter(req.Key)}, req.ID.Hex(), req.TTL.Milliseconds()).Int64()
	switch {
	case err != nil:
		return backend.Grant{}, err
	case token == 0:
		return backend.Grant{}, held(req.Key)
	}
	g := granted(sent, req.TTL)
	g.Token = uint64(token)
	return g, nil
}
