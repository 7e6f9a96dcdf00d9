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
	etcdlock "github.com/mortiselock/lock/etcd"
)

// Lock is one lock of the collection.
type Lock struct {
	// ID is the name of the mistake, such as "Z33".
	ID string
	// Title says in a few words what the lock does.
	Title string
	// Summary says in one sentence what goes wrong.
	Summary string
	// Seen says where locks like it were found, or where they are described.
	Seen string
	// Instead says what to do in its place.
	Instead string
	// File is the source file of the mistake, in this package's directory.
	File string
	// Rule is the rule of the suite that must catch it.
	Rule string

	change func(healthy) backend.Backend
}

// All lists the broken locks.
func All() []Lock { return []Lock{z33, z35, z47} }

// Healthy is what the broken locks are made of. The suite must pass on it, or else
// a failure on a broken one would prove nothing.
var Healthy = Lock{ID: "healthy", Title: "etcd, unchanged", change: func(h healthy) backend.Backend { return h }}

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

// Config is the lock as the suite sees it. Its clients share the one given, which
// stays open.
func (l Lock) Config(client *clientv3.Client) conformance.Config {
	return conformance.Config{
		Name: l.ID + " " + l.Title,
		TTL:  2 * time.Second,
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			b, err := etcdlock.NewBackend(ctx, client, &etcdlock.Options{Prefix: prefix + l.ID})
			if err != nil {
				return nil, err
			}
			return l.change(b.(healthy)), nil
		},
		EndSession: func(ctx context.Context, key string) error {
			return EndSession(ctx, client, prefix+l.ID+"/", key)
		},
	}
}

// EndSession revokes the etcd lease of the last place in the queue of a key, whose
// letters need no escape but the slash. It is the hook of conformance.Config.
func EndSession(ctx context.Context, client *clientv3.Client, prefix, key string) error {
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
