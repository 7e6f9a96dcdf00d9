package flawed

import (
	"context"

	"github.com/mortiselock/lock/backend"
)

var z02 = Lock{
	ID: "Z02", Title: "SETNX, then EXPIRE",
	Summary: "A client that dies between the two leaves a record without expiry.",
	Seen:    "redis/redis-py#554, laravel/horizon#1738, getsentry/sentry#1509, lukas-krecan/ShedLock#65.",
	Instead: "SET name id NX PX ttl.",
	File:    "setnx_then_expire.go", Over: Redis,
	Rule: "CrashBetweenSteps",
	// Whoever gives up between the commands leaves the record for ever, for any reason.
	Also: append([]string{"TTLGrain"}, cleanUps...),
	On:   onRedis(func(s single) backend.Backend { return setnxThenExpire{s} }),
}

// setnxThenExpire takes the key with one command and sets its expiry with the
// next.
//
//	A: SETNX job a        -> 1
//	A: is killed here, or its caller's context ends and PEXPIRE is not sent
//	B: SETNX job b        -> 0, and 0 again for ever
//
// The gap is a fraction of a millisecond wide, and every deployment and every
// timeout under load has a chance to hit it. Caught by CrashBetweenSteps: it cancels the
// request at random moments and, like a dead process, never cleans up.
//
// Instead: SET name id NX PX ttl. Servers before 2.6.12, which lack it, are no
// reason any more; they had scripts.
type setnxThenExpire struct{ single }

func (s setnxThenExpire) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	sent := now()
	taken, err := s.rdb.SetNX(ctx, s.name(req.Key), req.ID.Hex(), 0).Result()
	if err != nil {
		return backend.Grant{}, err
	}
	if !taken {
		return s.repeat(ctx, req)
	}
	if err := s.rdb.PExpire(ctx, s.name(req.Key), req.TTL).Err(); err != nil {
		return backend.Grant{}, err
	}
	return granted(sent, req.TTL), nil
}
