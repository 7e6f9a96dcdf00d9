package peers

import (
	"context"
	"errors"
	"net/url"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance"
)

func openEtcdMutex(_ context.Context, addr string, ttl time.Duration) (lock.Locker, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	acquire := func(f func(*concurrency.Mutex, context.Context) error) conformance.AcquireFunc {
		return func(ctx context.Context, key string, ttl time.Duration) (h conformance.Handle, err error) {
			s, err := concurrency.NewSession(client, concurrency.WithTTL(int(ttl/time.Second)))
			if err != nil {
				return h, err
			}
			m := concurrency.NewMutex(s, "/peers/"+url.PathEscape(key))
			if err := f(m, ctx); err != nil {
				return h, errors.Join(err, s.Close())
			}
			return conformance.Handle{Held: s.Ctx(), Token: uint64(m.Header().Revision), Release: conformance.Once(func(ctx context.Context) error {
				if err := errors.Join(m.Unlock(ctx), s.Close()); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
					return err
				}
				return lock.ErrNotHeld
			})}, nil
		}
	}
	return conformance.Adapter{
		TTL: ttl, Renews: true, Try: acquire((*concurrency.Mutex).TryLock), Lock: acquire((*concurrency.Mutex).Lock),
		Close: client.Close, Stop: func() { _ = client.Close() }, Taken: func(err error) bool { return errors.Is(err, concurrency.ErrLocked) },
	}.Locker()
}
