package foreign

import (
	"context"
	"time"

	"github.com/bsm/redislock"

	"github.com/mortiselock/lock"
)

// Redislock is the lock of github.com/bsm/redislock under the names that the service uses.
func Redislock(client *redislock.Client, name func(key string) string, ttl time.Duration) *Locker {
	gone := func(err error) error {
		return as(lock.ErrNotHeld, err, redislock.ErrNotObtained, redislock.ErrLockNotHeld)
	}
	return &Locker{Name: "redislock", TTL: ttl, Try: func(ctx context.Context, key string, ttl time.Duration) (Hold, error) {
		l, err := client.Obtain(ctx, name(key), ttl, nil)
		if err != nil {
			return Hold{}, as(lock.ErrHeld, err, redislock.ErrNotObtained)
		}
		return Hold{
			Extend:  func(ctx context.Context, ttl time.Duration) error { return gone(l.Refresh(ctx, ttl, nil)) },
			Release: func(ctx context.Context) error { return gone(l.Release(ctx)) },
		}, nil
	}}
}
