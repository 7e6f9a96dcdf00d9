package flawed

import (
	"context"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
)

var healthyFenced = Lock{
	ID: "healthy", Title: "the same with a fencing token",
	File: "healthy_fenced.go", Over: Redis,
	On: onRedis(func(s single) backend.Backend { return fenced{s} }),
}

// fenced is single with fencing tokens: a counter beside the record, raised in
// the step that grants. The counter has no expiry and is never deleted. (In
// earnest its floor would be the server's clock, so that losing the counter
// repeats no token.)
type fenced struct{ single }

// grantWithToken returns the token of the grant, or 0 when somebody else holds
// the key. A repeat of a request finds its own id and the token that it was
// given.
var grantWithToken = goredis.NewScript(`
	local holder = redis.call('GET', KEYS[1])
	if holder and holder ~= ARGV[1] then return 0 end
	redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
	if holder then return tonumber(redis.call('GET', KEYS[2])) end
	return redis.call('INCR', KEYS[2])`)

// counter is the Redis key of the token counter of a lock.
func (f fenced) counter(key string) string { return "flawed-token:" + f.file + ":" + key }

func (f fenced) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	sent := now()
	token, err := grantWithToken.Run(ctx, f.rdb, []string{f.name(req.Key), f.counter(req.Key)}, req.ID.Hex(), req.TTL.Milliseconds()).Int64()
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

func (f fenced) Guarantees() backend.Guarantees {
	g := f.single.Guarantees()
	g.Token = backend.TokenCounter
	g.TokenSurvives = []backend.Fault{backend.FaultClientCrash, backend.FaultRecordRemoved}
	return g
}
