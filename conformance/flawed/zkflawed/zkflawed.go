package zkflawed

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/flawed/internal/flaw"
)

// Lock is one lock of the collection.
type Lock = flaw.Lock

// TTL is the time to live of all leases, and the timeout of the sessions.
const TTL = 2 * time.Second

// All lists the broken locks.
func All() []Lock { return []Lock{z33, z34, z35} }

// Healthy is what the broken locks are made of.
func Healthy() []Lock { return []Lock{healthy} }

// onZooKeeper makes a client of the lock out of a healthy one. The server is an address.
type onZooKeeper func(*recipe) backend.Backend

// Make implements flaw.Maker.
func (on onZooKeeper) Make(_ context.Context, _ Lock, server any) (conformance.Config, error) {
	addr := server.(string)
	return conformance.Config{
		TTL: TTL,
		OpenBackend: func(context.Context) (backend.Backend, error) {
			r, err := connect(addr, TTL)
			if err != nil {
				return nil, err
			}
			return on(r), nil
		},
		Remove: func(_ context.Context, key string) error { return remove(addr, key) },
	}, nil
}

// remove deletes every node of the key, as an operator would.
func remove(addr, key string) error {
	r, err := connect(addr, TTL)
	if err != nil {
		return err
	}
	defer r.Close()
	names, _, err := r.conn.Children(dirOf(key))
	for _, name := range names {
		if derr := r.conn.Delete(dirOf(key)+"/"+name, -1); !errors.Is(derr, zk.ErrNoNode) {
			err = errors.Join(err, derr)
		}
	}
	return err
}
