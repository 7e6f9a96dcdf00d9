package peers

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var bsmRedislock = Peer{
	Name: "github.com/bsm/redislock", Version: "v0.9.4", Server: "redis", Record: "%s", TTL: time.Second,
	Adapter: "Acquire is Obtain with the retry strategy LinearBackoff(20 ms); Renew is Refresh",
	NotClaimed: map[string]string{
		"RenewKeeps": "locks are refreshed by their caller", "HoldOutlivesAcquireCtx": "locks are refreshed by their caller",
		"WaitOutlastsTTL": "locks are refreshed by their caller",
		"TTLGrain":        "a TTL is cut to milliseconds",
		"close":           "there is nothing to close",
		"ReleaseDetached": "Release sends its request with the context that it is given",
	},
	Guarantees: backend.Guarantees{
		Name: "bsm/redislock", Reach: backend.ReachNetwork, Expiry: backend.ClockServerWall, TTLGrain: time.Millisecond,
		Token: backend.TokenNone, Reentrancy: backend.ReentrancyNone, Waiting: backend.WaitPoll, ManualRenewal: true, WithoutRenewal: true,
	},
	open: func(_ context.Context, addr string, ttl time.Duration) (lock.Locker, error) {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		client := redislock.New(rdb)
		obtain := func(opt *redislock.Options) func(context.Context, string, time.Duration) (*lease, error) {
			return func(ctx context.Context, key string, ttl time.Duration) (*lease, error) {
				l, err := client.Obtain(ctx, key, ttl, opt)
				if err != nil {
					return nil, bsmError(err, lock.ErrHeld)
				}
				return &lease{
					renew:   func(ctx context.Context) error { return bsmError(l.Refresh(ctx, ttl, nil), lock.ErrNotHeld) },
					release: func(ctx context.Context) error { return bsmError(l.Release(ctx), lock.ErrNotHeld) },
				}, nil
			}
		}
		wait := &redislock.Options{RetryStrategy: redislock.LinearBackoff(20 * time.Millisecond)}
		return &adapter{ttl: ttl, try: obtain(nil), wait: obtain(wait), shutdown: rdb.Close}, nil
	},
}

func bsmError(err, taken error) error {
	return as(as(err, redislock.ErrNotObtained, taken), redislock.ErrLockNotHeld, taken)
}
