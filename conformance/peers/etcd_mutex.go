package peers

import (
	"context"
	"errors"
	"net/url"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var etcdMutex = Peer{
	Name: "go.etcd.io/etcd/client/v3/concurrency", Version: "v3.7.3", Server: "etcd", Record: "/peers/%s/", TTL: 2 * time.Second,
	Adapter: "a Session and a Mutex for each acquisition, since two of one Session don't exclude each other; keys are escaped, since a Mutex has all keys below its prefix; the token is the revision of the reply header",
	NotClaimed: map[string]string{
		"close":           "a Session is closed by its caller",
		"ReleaseTwice":    "a Mutex is for one goroutine; the adapter answers the second time",
		"ReleaseDetached": "Unlock sends its request with the context that it is given",
		"LostOnRemoval":   "the context of a Session ends with its lease; it says nothing about keys",
	},
	Guarantees: backend.Guarantees{
		Name: "etcd concurrency.Mutex", Reach: backend.ReachNetwork, Expiry: backend.ClockServerSteps,
		MinTTL: 2 * time.Second, MaxTTL: 2 * time.Second, TTLGrain: time.Second, TakeoverLag: time.Second,
		Token: backend.TokenRevision, Reentrancy: backend.ReentrancyNone, Waiting: backend.WaitQueue, Fair: true, LossSignal: true,
	},
	open: func(_ context.Context, addr string, ttl time.Duration) (lock.Locker, error) {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
		if err != nil {
			return nil, err
		}
		acquire := func(f func(*concurrency.Mutex, context.Context) error) func(context.Context, string, time.Duration) (*lease, error) {
			return func(ctx context.Context, key string, ttl time.Duration) (*lease, error) {
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				s, err := concurrency.NewSession(client, concurrency.WithTTL(int(ttl/time.Second)))
				if err != nil {
					return nil, err
				}
				m := concurrency.NewMutex(s, "/peers/"+url.PathEscape(key))
				if err := f(m, ctx); err != nil {
					_ = s.Close()
					return nil, as(err, concurrency.ErrLocked, lock.ErrHeld)
				}
				return &lease{
					held: s.Ctx(), token: uint64(m.Header().Revision),
					release: once(func(ctx context.Context) error { return errors.Join(m.Unlock(ctx), s.Close()) }),
				}, nil
			}
		}
		return &adapter{ttl: ttl, renews: true, try: acquire((*concurrency.Mutex).TryLock), wait: acquire((*concurrency.Mutex).Lock), shutdown: client.Close, abandon: func() { _ = client.Close() }}, nil
	},
}
