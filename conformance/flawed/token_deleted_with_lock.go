package flawed

import (
	"context"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
)

var z24 = Lock{
	ID: "Z24", Title: "the token counter goes with the lock",
	Summary: "After a release the tokens begin at 1 again.",
	Seen:    "Counters that are deleted or expire with the record.",
	Instead: "Keep the counter, or use what only grows.",
	File:    "token_deleted_with_lock.go", Over: Redis,
	Rule: "TokenIncreases",
	Also: []string{"TokenSurvivesRelease", "TokenInGrantOrder", "TokenInTakeoverOrder", "TokenSurvivesIdling", "TokenSurvivesLastClose"},
	On:   onRedis(func(s single) backend.Backend { return tokenDeleted{fenced{s}} }),
}

// tokenDeleted tidies up: with the last release the counter is deleted too.
//
//	A: acquires, token 1; stands still; its lease runs out
//	B: acquires, token 2; finds nothing to do, releases; the counter goes
//	C: acquires, token 1 again; writes
//	A: wakes up and writes with its token 1, which is not smaller than C's
//
// And had B written, the store would refuse C, who holds the key.
//
// A fencing token is worth something only if it never goes back. Caught by
// TokenIncreases.
//
// Instead: keep the counter without expiry. Where the number of keys is the
// worry, share counters between keys: a token may skip numbers.
type tokenDeleted struct{ fenced }

var deleteAllIfMine = goredis.NewScript(`
	if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
	redis.call('DEL', KEYS[1], KEYS[2])
	return 1`)

func (t tokenDeleted) Release(ctx context.Context, hold backend.Hold) error {
	n, err := deleteAllIfMine.Run(ctx, t.rdb, []string{t.name(hold.Key), t.counter(hold.Key)}, hold.ID.Hex()).Int()
	return released(n == 1, err)
}
