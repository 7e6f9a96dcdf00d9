package peers

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance"
)

func openRueidislock(_ context.Context, addr string, ttl time.Duration) (lock.Locker, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{addr}}, KeyMajority: 1, NoLoopTracking: true, KeyValidity: ttl,
	})
	if err != nil {
		return nil, err
	}
	acquire := func(f func(context.Context, string) (context.Context, context.CancelFunc, error)) conformance.AcquireFunc {
		return conformance.DetachedContext(func(life context.Context, key string, _ time.Duration) (conformance.Handle, error) {
			held, cancel, err := f(life, key)
			return conformance.Handle{Held: held, Release: conformance.Once(func(context.Context) error { cancel(); return nil })}, err
		})
	}
	return conformance.Adapter{
		TTL: ttl, Renews: true, Try: acquire(l.TryWithContext), Lock: acquire(l.WithContext),
		Close: func() error { l.Close(); return nil }, Stop: l.Client().Close,
		Taken: func(err error) bool { return errors.Is(err, rueidislock.ErrNotLocked) },
	}.Locker()
}
