package foreign

import (
	"context"
	"time"

	"github.com/redis/rueidis/rueidislock"

	"github.com/mortiselock/lock"
)

// Rueidislock is the lock of github.com/redis/rueidis/rueidislock, with the KeyPrefix,
// KeyMajority and KeyValidity that the service uses. A request that takes longer than
// TryNextAfter (20 ms) is an error here.
func Rueidislock(locker rueidislock.Locker, name func(key string) string, validity time.Duration) *Locker {
	return &Locker{Name: "rueidislock", TTL: validity, Renews: true, Try: func(ctx context.Context, key string, _ time.Duration) (Hold, error) {
		// The hold would end with the context of the call.
		held, release, err := locker.TryWithContext(context.WithoutCancel(ctx), name(key))
		if err != nil {
			return Hold{}, as(lock.ErrHeld, err, rueidislock.ErrNotLocked)
		}
		return Hold{Held: held, Release: func(context.Context) error { release(); return nil }}, nil
	}}
}
