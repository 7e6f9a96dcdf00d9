package redislock

import (
	"context"
	"errors"
	"fmt"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/internal/failure"
	"github.com/mortiselock/lock/redis/internal/wire"
)

// refusal marks what only a member of a Cluster may say without a wrong setting
// behind it.
func (b *redisBackend) refusal(err error) error {
	if b.cluster && (goredis.HasErrorPrefix(err, "MOVED ") || goredis.HasErrorPrefix(err, "ASK ")) {
		return wire.Redirected(err)
	}
	return err
}

// keyError is the error of an operation on a key. lost says that an earlier
// attempt may have been applied, which makes the outcome unknown whatever the
// last one said.
func keyError(ctx context.Context, n names, err error, lost bool) error {
	err = wire.Describe(ctx, err)
	if lost {
		return fmt.Errorf("redislock: key %q: an attempt lost its reply, and after it: %w", n.key, failure.Unmarked(err))
	}
	var refusal goredis.Error
	if errors.As(err, &refusal) && wire.Code(refusal.Error()) == "WRONGTYPE" {
		return fmt.Errorf("redislock: key %q: %w; look at the Redis keys %q and %q", n.key, err, n.record(), n.counter())
	}
	return failure.OfKey("redislock", n.key, err)
}
