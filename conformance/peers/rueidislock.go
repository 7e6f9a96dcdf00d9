package peers

import (
	"context"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var rueidisLock = Peer{
	Name: "github.com/redis/rueidis/rueidislock", Version: "v1.0.79", Server: "redis", Record: "rueidislock:0:%s", TTL: time.Second,
	Adapter: "a Locker with KeyMajority 1 and NoLoopTracking, as its README has it for one server, and with the TTL as the limit of a request, since there is no next key to go on to; WithContext gets a context that nobody else ends, since the hold ends with it; Release calls the CancelFunc once",
	NotClaimed: map[string]string{
		"ReleaseTwice": "a CancelFunc says nothing; the adapter answers the second time",
	},
	Guarantees: backend.Guarantees{
		Name: "rueidislock", Reach: backend.ReachNetwork, Expiry: backend.ClockMajority, MinTTL: time.Second, MaxTTL: time.Second,
		Token: backend.TokenNone, Reentrancy: backend.ReentrancyNone, Waiting: backend.WaitPush, LossSignal: true,
	},
	open: func(_ context.Context, addr string, ttl time.Duration) (lock.Locker, error) {
		l, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: rueidis.ClientOption{InitAddress: []string{addr}}, KeyMajority: 1, NoLoopTracking: true, KeyValidity: ttl,
			TryNextAfter: ttl, // its time limit for a request, of 20 ms, is meant for going on to the next key
		})
		if err != nil {
			return nil, err
		}
		acquire := func(f func(context.Context, string) (context.Context, context.CancelFunc, error)) func(context.Context, string, time.Duration) (*lease, error) {
			return func(ctx context.Context, key string, _ time.Duration) (*lease, error) {
				life, end := context.WithCancel(context.Background())
				stop := context.AfterFunc(ctx, end)
				held, cancel, err := f(life, key)
				if !stop() { // ctx has ended
					if err == nil {
						cancel()
					}
					err = ctx.Err()
				}
				if err != nil {
					end()
					return nil, as(as(err, rueidislock.ErrNotLocked, lock.ErrHeld), rueidislock.ErrLockerClosed, lock.ErrClosed)
				}
				return &lease{held: held, release: once(func(context.Context) error { cancel(); end(); return nil })}, nil
			}
		}
		return &adapter{
			ttl: ttl, renews: true, try: acquire(l.TryWithContext), wait: acquire(l.WithContext),
			shutdown: func() error { l.Close(); return nil }, abandon: l.Client().Close,
		}, nil
	},
}
