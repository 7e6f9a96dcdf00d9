package flawed

import (
	"context"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
)

var z39 = Lock{
	ID: "Z39", Title: "a TTL cut to whole seconds",
	Summary: "A TTL of 1.9 seconds is kept for one, half a second for none.",
	Seen:    "songzhibin97/gkit#183; integer division for EXPIRE or EX.",
	Instead: "PX, PEXPIRE; round up, or refuse.",
	File:    "ttl_in_seconds.go", Over: Redis,
	Rule: "TTLGrain",
	Also: []string{"TTLRange", "EveryTTLLasts", "AcquireKeepsTTL"},
	On:   onRedis(func(s single) backend.Backend { return ttlInSeconds{s} }),
}

// ttlInSeconds gives the server whole seconds, and tells its caller of the TTL that
// was asked for.
//
//	A: SET job a NX, EXPIRE job 0   (a TTL of 500 ms) -> 1: the record is deleted
//	A: works, for 500 ms as it thinks
//	B: SET job b NX, EXPIRE job 0                     -> 1, works too
//
// With the TTLs that people test with, 10 s or a minute, nothing is wrong. Caught
// by TTLGrain, which asks for TTLs beside whole units, such as 999 ms.
//
// Instead: milliseconds, which every version of Redis since 2.6 takes.
type ttlInSeconds struct{ single }

var (
	setAndExpire = goredis.NewScript(`
		if not redis.call('SET', KEYS[1], ARGV[1], 'NX') then return 0 end
		return redis.call('EXPIRE', KEYS[1], ARGV[2])`)

	expireIfMine = goredis.NewScript(`
		if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
		return redis.call('EXPIRE', KEYS[1], ARGV[2])`)
)

func (s ttlInSeconds) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	sent := now()
	n, err := setAndExpire.Run(ctx, s.rdb, []string{s.name(req.Key)}, req.ID.Hex(), int(req.TTL/time.Second)).Int()
	switch {
	case err != nil:
		return backend.Grant{}, err
	case n == 0:
		return s.repeat(ctx, req)
	}
	return granted(sent, req.TTL), nil
}

func (s ttlInSeconds) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	sent := now()
	n, err := expireIfMine.Run(ctx, s.rdb, []string{s.name(hold.Key)}, hold.ID.Hex(), int(hold.TTL/time.Second)).Int()
	return renewed(sent, hold.TTL, n == 1, err)
}
