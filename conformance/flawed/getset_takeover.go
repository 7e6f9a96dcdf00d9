package flawed

import (
	"context"
	"errors"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
)

var z06 = Lock{
	ID: "Z06", Title: "SETNX with a timestamp, takeover with GETSET",
	Summary: "Each client's own clock decides whether the holder's time is over.",
	Seen:    "Redis's documentation of SETNX, second half; RichardKnop/machinery#780.",
	Instead: "Let the server expire the record.",
	File:    "getset_takeover.go", Over: Redis,
	Rule: "ServerOutlivesD",
	Also: append([]string{"CrashBetweenSteps", "TryIdempotent", "RenewKeeps", "RenewByHand", "HoldOutlivesAcquireCtx", "RenewTransient"}, takeovers...),
	On: onRedis(func(s single) backend.Backend {
		t := newTimestamps(s)
		t.ahead = time.Duration(s.number) * skew
		return getsetTakeover{t}
	}),
}

// skew is by how much the clock of each client is ahead of the last one's: what a
// clock that runs 50 millionths too fast gains in a quarter of an hour.
const skew = 50 * time.Millisecond

// getsetTakeover keeps in the record the time at which it ends, by the clock of
// its holder, and takes old records over with GETSET, so that of several clients
// only one gets the old value back.
//
//	A, 12:00:00: SETNX job 12:00:10   -> 1, A works until 12:00:10
//	B's clock is three seconds ahead: at A's 12:00:07 it reads 12:00:10
//	B, 12:00:10: GET job, it has ended; GETSET job 12:00:20 -> 12:00:10, B works
//	A works for three seconds more
//
// And the loser of a takeover writes too: its GETSET comes back with the winner's
// value, and leaves its own in its place. The winner no longer finds what it wrote,
// so it can neither renew nor release.
//
// Caught by ServerOutlivesD, since the suite's clients are given clocks that
// differ by some hundredths of a second, as those of machines do.
//
// Instead: leave the expiry to the server. Its clock is the only one that all
// clients share.
type getsetTakeover struct{ timestamps }

func (t getsetTakeover) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	sent, stamp := now(), t.stamp(req.ID, req.TTL)
	taken, err := t.rdb.SetNX(ctx, t.name(req.Key), stamp, 0).Result()
	if err != nil {
		return backend.Grant{}, err
	}
	if taken {
		return t.grant(req, sent)
	}
	value, err := t.read(ctx, req.Key)
	if err != nil {
		return backend.Grant{}, err
	}
	if !t.old(value) {
		return t.refuse(ctx, req)
	}
	before, err := t.rdb.SetArgs(ctx, t.name(req.Key), stamp, goredis.SetArgs{Get: true}).Result() // GETSET
	switch {
	case errors.Is(err, goredis.Nil): // released in the meantime
		return t.grant(req, sent)
	case err != nil:
		return backend.Grant{}, err
	case !t.old(before): // somebody was faster
		return backend.Grant{}, held(req.Key)
	}
	return t.grant(req, sent)
}
