package flawed

import (
	"context"
	"errors"
	"slices"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
)

var z07Watch = Lock{
	ID: "Z07", Title: "WATCH and EXEC on different connections",
	Summary: "WATCH guards one connection, the transaction goes out on another.",
	Seen:    "Pooled clients; in go-redis it is one letter: rdb for tx.",
	Instead: "A script; or all on one connection.",
	File:    "watch_on_other_connection.go", Over: Redis,
	Rule: "ReleaseAtExpiry",
	Also: slices.Concat(takeovers, cleanUps),
	On:   onRedis(func(s single) backend.Backend { return watchElsewhere{s} }),
}

// watchElsewhere releases with a transaction that should fail when the record
// has changed since it was looked at.
//
//	A, connection 1: WATCH job, GET job        -> a: it is mine
//	A's record expires
//	B: SET job b NX PX 10000                   -> OK, B works
//	A, connection 2: MULTI, DEL job, EXEC      -> 1: that was B's
//	A, connection 1: UNWATCH
//
// The server would have refused the EXEC on connection 1. With one connection in
// the pool, as in many tests, it does. Caught by ReleaseAtExpiry.
// (ReleaseOwnOnly releases when the next holder has the key: then the comparison says so.)
//
// Instead: a script. A transaction works too, if the client keeps all of it on
// one connection, and the server is 6.0.9 or later: before that, a key that merely
// expired did not abort.
type watchElsewhere struct{ single }

func (s watchElsewhere) Release(ctx context.Context, hold backend.Hold) error {
	return s.rdb.Watch(ctx, func(tx *goredis.Tx) error {
		id, err := tx.Get(ctx, s.name(hold.Key)).Result()
		if errors.Is(err, goredis.Nil) || err == nil && id != hold.ID.Hex() {
			return backend.ErrNotHeld
		}
		if err != nil {
			return err
		}
		dawdle()
		var deleted *goredis.IntCmd
		_, err = s.rdb.TxPipelined(ctx, func(p goredis.Pipeliner) error { // not tx.TxPipelined
			deleted = p.Del(ctx, s.name(hold.Key))
			return nil
		})
		return released(deleted.Val() == 1, err)
	}, s.name(hold.Key))
}
