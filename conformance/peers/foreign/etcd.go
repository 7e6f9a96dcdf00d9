package foreign

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/mortiselock/lock"
)

// Etcd is the Mutex of go.etcd.io/etcd/client/v3/concurrency, with the prefixes and the TTL
// of the Sessions that the service uses. Each hold has a Session: two of one exclude nothing.
func Etcd(client *clientv3.Client, prefix func(key string) string, ttl time.Duration) *Locker {
	with := func(ask func(*concurrency.Mutex, context.Context) error) func(context.Context, string, time.Duration) (Hold, error) {
		return func(ctx context.Context, key string, ttl time.Duration) (Hold, error) {
			granted, err := client.Grant(ctx, int64(ttl.Seconds())) // a Session would ask without ctx
			if err != nil {
				return Hold{}, err
			}
			s, err := concurrency.NewSession(client, concurrency.WithLease(granted.ID), concurrency.WithTTL(int(ttl.Seconds())))
			if err != nil {
				return Hold{}, err
			}
			m := concurrency.NewMutex(s, prefix(key))
			if err := ask(m, ctx); err != nil {
				return Hold{}, as(lock.ErrHeld, errors.Join(err, s.Close()), concurrency.ErrLocked, concurrency.ErrSessionExpired)
			}
			look := func(ctx context.Context, _ time.Duration) error { // of a removed key a Session says nothing
				if seen, err := client.Txn(ctx).If(m.IsOwner()).Commit(); err != nil || seen.Succeeded {
					return err
				}
				return lock.ErrNotHeld
			}
			return Hold{Held: s.Ctx(), Extend: look, Release: func(context.Context) error { return s.Close() }, Token: uint64(m.Header().Revision)}, nil
		}
	}
	return &Locker{Name: "etcd concurrency", TTL: ttl, Renews: true, Try: with((*concurrency.Mutex).TryLock), Wait: with((*concurrency.Mutex).Lock)}
}
