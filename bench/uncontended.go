package main

import (
	"context"
	"errors"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/measure"
	redislock "github.com/mortiselock/lock/redis"
)

// bareRelease is the compare-and-delete script of the Redis page on distributed
// locks.
var bareRelease = goredis.NewScript(`if redis.call("get",KEYS[1]) == ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end`)

var errBareHeld = errors.New("the bare key was held")

// uncontended compares acquire and release of a free key by one goroutine with
// the bare commands.
func (b *bench) uncontended() error {
	client := b.client()
	defer client.Close()
	locker, err := redislock.New(b.ctx, client, nil)
	if err != nil {
		return err
	}
	defer locker.Close()
	id := backend.NewID().Hex()
	return b.pairs(
		&measure.Side{Name: "SET NX PX + compare-and-delete", Take: func(ctx context.Context) (func() error, error) {
			ok, err := client.SetNX(ctx, "bare", id, 15*time.Second).Result()
			if err == nil && !ok {
				err = errBareHeld
			}
			return func() error { return bareRelease.Run(ctx, client, []string{"bare"}, id).Err() }, err
		}},
		&measure.Side{Name: "Locker.TryAcquire + Release", Take: measure.Taking(locker.TryAcquire, "ours")},
		&measure.Side{Name: "Locker.Acquire + Release", Take: measure.Taking(locker.Acquire, "ours")},
	)
}
