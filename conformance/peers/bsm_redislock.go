package peers

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance"
)

func openRedislock(_ context.Context, addr string, ttl time.Duration) (lock.Locker, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	client := redislock.New(rdb)
	obtain := func(opt *redislock.Options) conformance.AcquireFunc {
		return func(ctx context.Context, key string, ttl time.Duration) (conformance.Handle, error) {
			ctx, cancel := context.WithTimeout(ctx, time.Hour) // without a deadline, it would give up after the TTL
			defer cancel()
			l, err := client.Obtain(ctx, key, ttl, opt)
			if err != nil {
				return conformance.Handle{}, err
			}
			return conformance.Handle{Renew: func(ctx context.Context) error { return l.Refresh(ctx, ttl, nil) }, Release: l.Release}, nil
		}
	}
	return conformance.Adapter{
		TTL: ttl, Try: obtain(nil), Close: rdb.Close,
		Lock: obtain(&redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)}),
		Taken: func(err error) bool {
			return errors.Is(err, redislock.ErrNotObtained) || errors.Is(err, redislock.ErrLockNotHeld)
		},
	}.Locker()
}
