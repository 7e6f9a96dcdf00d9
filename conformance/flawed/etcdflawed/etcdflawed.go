// Package etcdflawed has locks over etcd that are broken on purpose, for the
// conformance suite to catch: mistakes that the recipes of coordination services
// invite, and that need a real server to show. Each is a healthy backend with one
// change. See package flawed for the others.
package etcdflawed

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/flawed/internal/flaw"
	etcdlock "github.com/mortiselock/lock/etcd"
)

// Lock is one lock of the collection.
type Lock = flaw.Lock

// All lists the broken locks.
func All() []Lock { return []Lock{z33, z35, z47, z135} }

// Healthy is what the broken locks are made of. The suite must pass on it, or else
// a failure on a broken one would prove nothing.
func Healthy() []Lock {
	return []Lock{{ID: "healthy", Title: "etcd, unchanged", On: onEtcd(func(h healthy) backend.Backend { return h })}}
}

// healthy is a backend that the locks of this package embed.
type healthy interface {
	backend.Backend
	backend.Queuer
	backend.LossNotifier
	backend.Inspector
	backend.ForceReleaser
}

// prefix begins the etcd keys of every lock of this package.
const prefix = "flawed/"

// onEtcd makes a client of the lock out of a healthy one. The server is a
// [*clientv3.Client], which all clients of the lock share.
type onEtcd func(healthy) backend.Backend

// Make implements flaw.Maker.
func (on onEtcd) Make(_ context.Context, l Lock, server any) (conformance.Config, error) {
	client := server.(*clientv3.Client)
	return conformance.Config{
		TTL: 2 * time.Second,
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			b, err := etcdlock.NewBackend(ctx, client, &etcdlock.Options{Prefix: prefix + l.ID})
			if err != nil {
				return nil, err
			}
			return on(b.(healthy)), nil
		},
		EndSession: func(ctx context.Context, key string) error {
			return endSession(ctx, client, prefix+l.ID+"/", key)
		},
	}, nil
}

// endSession revokes the etcd lease of the last place in the queue of a key, whose
// letters need no escape but the slash. It is the hook of conformance.Config.
func endSession(ctx context.Context, client *clientv3.Client, prefix, key string) error {
	dir := prefix + "keys/" + escape(key) + "/"
	resp, err := client.Get(ctx, dir, append(clientv3.WithLastCreate(), clientv3.WithKeysOnly())...)
	if err != nil {
		return err
	}
	if len(resp.Kvs) == 0 {
		return fmt.Errorf("nobody waits for %q", key)
	}
	_, err = client.Revoke(ctx, clientv3.LeaseID(resp.Kvs[0].Lease))
	return err
}
