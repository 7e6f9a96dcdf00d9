package flawed

import (
	"context"

	"github.com/mortiselock/lock/backend"
)

var z05 = Lock{
	ID: "Z05", Title: "an old record is deleted, then taken with SETNX",
	Summary: "The second to see the old record deletes what the first has taken.",
	Seen:    "Redis's documentation of SETNX, as a warning.",
	Instead: "Let the server expire the record.",
	File:    "del_then_setnx_takeover.go", Over: Redis,
	Rule: "ExclusiveAcrossTakeover",
	On:   onRedis(func(s single) backend.Backend { return delThenSetnx{newTimestamps(s)} }),
}

// delThenSetnx keeps in the record the time at which it ends, and clears old
// records away itself.
//
//	C: holds the key, and dies
//	A: SETNX job -> 0, GET job -> it has ended
//	B: SETNX job -> 0, GET job -> it has ended
//	A: DEL job, SETNX job -> 1, A works
//	B: DEL job            -> 1: that was A's
//	B: SETNX job -> 1, B works too
//
// Each command is atomic and their sequence is not: by the time of the DEL the
// record is another one than the one that was read. Caught by
// ExclusiveAcrossTakeover, which lets many clients notice one expiry at once.
//
// Instead: leave the expiry to the server, which forgets the record in the same
// step in which it ends.
type delThenSetnx struct{ timestamps }

func (t delThenSetnx) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	for cleared := false; ; cleared = true {
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
		if cleared || !t.old(value) {
			return t.refuse(ctx, req)
		}
		dawdle()
		if err := t.rdb.Del(ctx, t.name(req.Key)).Err(); err != nil { // whatever is there by now
			return backend.Grant{}, err
		}
	}
}
