package foreign

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-redsync/redsync/v4"

	"github.com/mortiselock/lock"
)

// Redsync is the lock of github.com/go-redsync/redsync, on the pools that the service uses.
// Its TTL is 8 s where the service gives no WithExpiry.
func Redsync(rs *redsync.Redsync, name func(key string) string, ttl time.Duration, opts ...redsync.Option) *Locker {
	taken := func(ours error, _ bool, err error) error {
		if errors.As(err, new(*redsync.ErrTaken)) || errors.As(err, new(*redsync.ErrNodeTaken)) || errors.Is(err, redsync.ErrLockAlreadyExpired) {
			return fmt.Errorf("%w: %w", ours, err)
		}
		return err
	}
	return &Locker{Name: "redsync", TTL: ttl, Try: func(ctx context.Context, key string, ttl time.Duration) (Hold, error) {
		m := rs.NewMutex(name(key), append(opts[:len(opts):len(opts)], redsync.WithExpiry(ttl))...)
		if err := m.TryLockContext(ctx); err != nil {
			return Hold{}, taken(lock.ErrHeld, false, err)
		}
		return Hold{
			Extend: func(ctx context.Context, _ time.Duration) error {
				ok, err := m.ExtendContext(ctx)
				return taken(lock.ErrNotHeld, ok, err)
			},
			Release: func(ctx context.Context) error {
				ok, err := m.UnlockContext(ctx)
				return taken(lock.ErrNotHeld, ok, err)
			},
		}, nil
	}}
}
