package peers

import (
	"context"
	"errors"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var redsyncMutex = Peer{
	Name: "github.com/go-redsync/redsync/v4", Version: "v4.18.1", Server: "redis", Record: "%s", TTL: time.Second,
	Adapter: "a Mutex with one pool for each acquisition; Acquire is LockContext with tries without end; Renew is ExtendContext",
	NotClaimed: map[string]string{
		"RenewKeeps": "locks are extended by their caller", "HoldOutlivesAcquireCtx": "locks are extended by their caller",
		"WaitOutlastsTTL": "locks are extended by their caller", "TTLGrain": "a TTL is cut to milliseconds", "close": "there is nothing to close",
		"ReleaseDetached": "UnlockContext sends its request with the context that it is given",
	},
	Guarantees: backend.Guarantees{
		Name: "redsync", Reach: backend.ReachNetwork, Expiry: backend.ClockMajority, TTLGrain: time.Millisecond,
		Token: backend.TokenNone, Waiting: backend.WaitPoll, ManualRenewal: true, WithoutRenewal: true, Deadline: true,
	},
	open: func(_ context.Context, addr string, ttl time.Duration) (lock.Locker, error) {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		rs := redsync.New(redsyncredis.NewPool(rdb))
		acquire := func(lockIt func(m *redsync.Mutex, ctx context.Context) error) func(context.Context, string, time.Duration) (*lease, error) {
			return func(ctx context.Context, key string, ttl time.Duration) (*lease, error) {
				m := rs.NewMutex(key, redsync.WithExpiry(ttl), redsync.WithTries(1<<30), redsync.WithRetryDelay(20*time.Millisecond))
				if err := lockIt(m, ctx); err != nil {
					return nil, redsyncError(err, lock.ErrHeld)
				}
				ended := func(f func(context.Context) (bool, error)) func(context.Context) error {
					return func(ctx context.Context) error {
						ok, err := f(ctx)
						if err == nil && !ok {
							return lock.ErrNotHeld
						}
						return redsyncError(err, lock.ErrNotHeld)
					}
				}
				return &lease{deadline: m.Until, renew: ended(m.ExtendContext), release: ended(m.UnlockContext)}, nil
			}
		}
		return &adapter{ttl: ttl, try: acquire((*redsync.Mutex).TryLockContext), wait: acquire((*redsync.Mutex).LockContext), shutdown: rdb.Close}, nil
	},
}

func redsyncError(err, taken error) error {
	all, one := (*redsync.ErrTaken)(nil), (*redsync.ErrNodeTaken)(nil)
	if errors.As(err, &all) || errors.As(err, &one) {
		return errors.Join(taken, err)
	}
	return as(as(err, redsync.ErrFailed, taken), redsync.ErrLockAlreadyExpired, taken)
}
