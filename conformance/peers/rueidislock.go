package peers

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var rueidisLock = Peer{
	Name: "github.com/redis/rueidis/rueidislock", Version: "v1.0.79", Server: "redis", TTL: time.Second,
	Adapter: "a Locker with KeyMajority 1; Release calls the CancelFunc",
	NotClaimed: map[string]string{
		"ReleaseTwice": "a CancelFunc says nothing", "ReleaseReportsLoss": "a CancelFunc says nothing",
		"ReleaseOwnOnly": "a CancelFunc says nothing", "ReleaseDetached": "a CancelFunc has no context",
	},
	Guarantees: backend.Guarantees{
		Name: "rueidislock", Reach: backend.ReachNetwork, Expiry: backend.ClockMajority, MinTTL: time.Second, MaxTTL: time.Second,
		Token: backend.TokenNone, Reentrancy: backend.ReentrancyNone, Waiting: backend.WaitPush, LossSignal: true,
	},
	open: func(_ context.Context, addr string, ttl time.Duration) (lock.Locker, error) {
		l, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: rueidis.ClientOption{InitAddress: []string{addr}}, KeyMajority: 1, KeyValidity: ttl,
		})
		if err != nil {
			return nil, err
		}
		acquire := func(f func(context.Context, string) (context.Context, context.CancelFunc, error)) func(context.Context, string, time.Duration) (*lease, error) {
			return func(ctx context.Context, key string, _ time.Duration) (*lease, error) {
				// The hold ends with the context that was given, so it gets one of its own.
				life, end := context.WithCancel(context.WithoutCancel(ctx))
				stop := context.AfterFunc(ctx, end)
				held, cancel, err := f(life, key)
				if !stop() && err == nil {
					cancel()
					err = ctx.Err()
				}
				if err != nil {
					end()
					return nil, rueidisError(err)
				}
				return &lease{ctx: held, release: func(context.Context) error { cancel(); end(); return nil }}, nil
			}
		}
		return &adapter{ttl: ttl, renews: true, try: acquire(l.TryWithContext), wait: acquire(l.WithContext), shutdown: func() error { l.Close(); return nil }}, nil
	},
	kill: func(l lock.Locker) { _ = l.Close() },
}

func rueidisError(err error) error {
	if errors.Is(err, rueidislock.ErrNotLocked) {
		return errors.Join(lock.ErrHeld, err)
	}
	return err
}
