package flawed

import (
	"context"
	"slices"

	"github.com/mortiselock/lock/backend"
)

var z03 = Lock{
	ID: "Z03", Title: "DEL without looking who holds it",
	Summary: "A late holder deletes the record of the next one.",
	Seen:    "Most tutorials; apache/superset#43462, errorception/redis-lock#29.",
	Instead: "Compare the id and delete in one script.",
	File:    "del_without_owner.go", Over: Redis,
	Rule: "ReleaseOwnOnly",
	Also: slices.Concat(takeovers, cleanUps, []string{"ReleaseByID", "RefusalLeavesNothing", "BackendErrors"}),
	On:   onRedis(func(s single) backend.Backend { return delWithoutOwner{s} }),
}

// delWithoutOwner releases with a bare DEL.
//
//	A: SET job a NX PX 10000   -> OK
//	A: works for 12 seconds; after 10 the record expires
//	B: SET job b NX PX 10000   -> OK, B works
//	A: DEL job                 -> 1: that was B's
//	C: SET job c NX PX 10000   -> OK, while B works
//
// One late holder starts a chain: B will delete C's record, and so on. Caught by
// ReleaseOwnOnly: it lets a lease run out, has the key taken by somebody else,
// releases the old lease and asks once more.
//
// Instead: give the record an id that nobody else has, and let a script delete it
// only if the id is still there.
type delWithoutOwner struct{ single }

func (s delWithoutOwner) Release(ctx context.Context, hold backend.Hold) error {
	n, err := s.rdb.Del(ctx, s.name(hold.Key)).Result()
	return released(n == 1, err)
}
