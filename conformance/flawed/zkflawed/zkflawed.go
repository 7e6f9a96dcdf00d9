package zkflawed

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
)

// Lock is one lock of the collection.
type Lock struct {
	ID      string   // the name of the mistake, such as "Z33"
	Title   string   // what the lock does
	Summary string   // what goes wrong
	Seen    string   // where locks like it were found, or where they are described
	Instead string   // what to do in its place
	File    string   // the source file of the mistake
	Rule    string   // the rule of the suite that must catch it; empty for a healthy lock
	Also    []string // other rules that the same mistake breaks, or may break

	change func(*recipe) backend.Backend
}

// TTL is the time to live of all leases, and the timeout of the sessions.
const TTL = 2 * time.Second

// All lists the broken locks.
func All() []Lock { return []Lock{z33, z34, z35} }

// Healthy is the lock that the broken ones are made of.
func Healthy() Lock { return healthy }

// Config is the lock as the suite sees it, on the server at addr.
func (l Lock) Config(addr string) conformance.Config {
	return conformance.Config{
		Name: l.ID + " " + l.Title,
		TTL:  TTL,
		OpenBackend: func(context.Context) (backend.Backend, error) {
			r, err := connect(addr, TTL)
			if err != nil || l.change == nil {
				return r, err
			}
			return l.change(r), nil
		},
		Remove: func(_ context.Context, key string) error { return remove(addr, key) },
	}
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
