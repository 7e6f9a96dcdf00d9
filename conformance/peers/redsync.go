package peers

import (
	"context"
	"errors"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance"
)

func openRedsync(_ context.Context, addr string, ttl time.Duration) (lock.Locker, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	rs := redsync.New(redsyncredis.NewPool(rdb))
	taken := func(err error) bool {
		return errors.As(err, new(*redsync.ErrTaken)) || errors.As(err, new(*redsync.ErrNodeTaken)) || errors.Is(err, redsync.ErrFailed) || errors.Is(err, redsync.ErrLockAlreadyExpired)
	}
	acquire := func(lockIt func(*redsync.Mutex, context.Context) error, again bool) conformance.AcquireFunc {
		return func(ctx context.Context, key string, ttl time.Duration) (conformance.Handle, error) {
			m := rs.NewMutex(key, redsync.WithExpiry(ttl))
			err := lockIt(m, ctx)
			for again && taken(err) && ctx.Err() == nil { // it gives up after 32 tries
				err = lockIt(m, ctx)
			}
			return conformance.Handle{Deadline: m.Until, Renew: errorOf(m.ExtendContext), Release: errorOf(m.UnlockContext)}, err
		}
	}
	return conformance.Adapter{
		TTL: ttl, Try: acquire((*redsync.Mutex).TryLockContext, false), Lock: acquire((*redsync.Mutex).LockContext, true), Close: rdb.Close, Taken: taken,
	}.Locker()
}

func errorOf(f func(context.Context) (bool, error)) func(context.Context) error {
	return func(ctx context.Context) error { _, err := f(ctx); return err }
}
