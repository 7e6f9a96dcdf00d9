package flawed

import (
	"context"
	"errors"
	"slices"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
)

var z04 = Lock{
	ID: "Z04", Title: "GET, compare in the client, DEL",
	Summary: "The lease runs out between GET and DEL, which hits the next holder.",
	Seen:    "apache/superset#43462 describes the gap.",
	Instead: "Compare and delete in one script.",
	File:    "get_compare_del.go", Over: Redis,
	Rule: "ReleaseAtExpiry",
	Also: slices.Concat(takeovers, cleanUps),
	On:   onRedis(func(s single) backend.Backend { return getCompareDel{s} }),
}

// getCompareDel looks who holds the key before it deletes the record, in two
// commands.
//
//	A: GET job                 -> a: it is mine
//	A's record expires
//	B: SET job b NX PX 10000   -> OK, B works
//	A: DEL job                 -> 1: that was B's
//	C: SET job c NX PX 10000   -> OK, while B works
//
// It looks right and passes every test that releases early or late. It breaks
// where a release meets the end of the lease, which is where holders that are
// short of time release. Caught by ReleaseAtExpiry, which aims there.
// (ReleaseOwnOnly releases when the next holder has the key: then the comparison says so.)
//
// Instead: the comparison and the DEL in one script, or in one command where there
// is one (DELEX with IFEQ since Redis 8.4, DELIFEQ since Valkey 9.0).
type getCompareDel struct{ single }

func (s getCompareDel) Release(ctx context.Context, hold backend.Hold) error {
	id, err := s.rdb.Get(ctx, s.name(hold.Key)).Result()
	if errors.Is(err, goredis.Nil) || err == nil && id != hold.ID.Hex() {
		return backend.ErrNotHeld
	}
	if err != nil {
		return err
	}
	dawdle() // the gap
	n, err := s.rdb.Del(ctx, s.name(hold.Key)).Result()
	return released(n == 1, err)
}
