package flawed

import (
	"context"
	"errors"
	"slices"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
)

var z07Nil = Lock{
	ID: "Z07", Title: "a nil EXEC taken for success",
	Summary: "A transaction that did not run counts as a release.",
	Seen:    "Releases with WATCH that ignore the result of EXEC.",
	Instead: "A script; or look again: the change may have been one's own.",
	File:    "nil_exec_as_success.go", Over: Redis,
	Rule: "ReleaseBesideRenewal",
	Also: slices.Concat(takeovers, cleanUps, []string{"LeaseConcurrent"}),
	On:   onRedis(func(s single) backend.Backend { return nilExec{s} }),
}

// nilExec releases with a transaction on one connection, which is right, and takes
// its failure for the news that somebody else holds the key by now.
//
//	A: WATCH job, GET job                      -> a: it is mine
//	A's watchdog, on another connection: PEXPIRE job 10000
//	A: MULTI, DEL job, EXEC                    -> nil: job has changed
//	A: so it was taken over, and there is nothing left to release
//	B: SET job b NX PX 10000                   -> nil, for ten seconds more
//
// A renewal changes the record as much as a takeover does. Caught by
// ReleaseBesideRenewal. (ReleaseOwnOnly has no renewal between WATCH and EXEC.)
//
// Instead: a script. With a transaction, begin again after a nil EXEC until the
// comparison says whose record it is, and stop renewals before the release.
type nilExec struct{ single }

func (s nilExec) Release(ctx context.Context, hold backend.Hold) error {
	err := s.rdb.Watch(ctx, func(tx *goredis.Tx) error {
		id, err := tx.Get(ctx, s.name(hold.Key)).Result()
		if errors.Is(err, goredis.Nil) || err == nil && id != hold.ID.Hex() {
			return backend.ErrNotHeld
		}
		if err != nil {
			return err
		}
		dawdle()
		_, err = tx.TxPipelined(ctx, func(p goredis.Pipeliner) error { return p.Del(ctx, s.name(hold.Key)).Err() })
		return err
	}, s.name(hold.Key))
	if errors.Is(err, goredis.TxFailedErr) {
		return nil // somebody else's by now
	}
	return err
}
