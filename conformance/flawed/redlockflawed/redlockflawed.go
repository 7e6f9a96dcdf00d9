// Package redlockflawed holds broken forms of Redlock, the lock on a majority of
// independent Redis servers, as people write them. It is the part of the collection in
// the package flawed that needs several servers: the conformance suite must catch each
// of them over real ones, by the rule that is named for it, and the healthy form of the
// same code must pass.
//
// Nobody should use any of this. For Redlock see the package redlock.
package redlockflawed

import (
	"context"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
)

// Lock is one lock of the collection.
type Lock struct {
	// ID is the name of the mistake, such as "Z19".
	ID string
	// Title says in a few words what the lock does.
	Title string
	// Summary says in one sentence what goes wrong.
	Summary string
	// Seen says where locks like it were found.
	Seen string
	// Instead says what to do in its place.
	Instead string
	// File is the source file of the mistake, in this package's directory.
	File string
	// Nodes is how many servers it needs, the first of which stands still if Frozen
	// is set.
	Nodes  int
	Frozen bool
	// Rule is the rule of the suite that must catch it. It is empty for the healthy
	// lock.
	Rule string

	on       func(textbook) backend.Backend
	asLocker func(lock.Locker) lock.Locker
}

// TTL is the time to live of the leases that the suite lets expire: longer where
// every request waits for a server that stands still.
func (l Lock) TTL() time.Duration {
	if l.Frozen {
		return 3 * time.Second
	}
	return time.Second
}

// All lists the broken locks.
func All() []Lock { return []Lock{z19, z20, z21, z21Errors, z22, z23, z23Minority} }

// Healthy lists the locks that the broken ones are made of: over three servers, and
// over three of which one stands still.
func Healthy() []Lock { return []Lock{healthy, healthyFrozen} }

// Config is the lock as the suite sees it. The clients obey the deadlines of contexts,
// are shared by all clients of the lock, and are left open.
func (l Lock) Config(nodes []*goredis.Client) conformance.Config {
	cfg := conformance.Config{Name: l.ID + " " + l.Title, TTL: l.TTL()}
	open := func(context.Context) (backend.Backend, error) {
		return l.on(textbook{nodes: nodes, timeout: l.nodeTimeout()}), nil
	}
	if l.asLocker == nil {
		cfg.OpenBackend = open
	} else {
		cfg.Open = func(ctx context.Context) (lock.Locker, error) {
			b, err := open(ctx)
			if err != nil {
				return nil, err
			}
			inner, err := lock.New(b, &lock.Options{TTL: l.TTL()})
			if err != nil {
				return nil, err
			}
			return l.asLocker(inner), nil
		}
	}
	cfg.Remove = func(ctx context.Context, key string) error {
		// A majority, which is enough to end a hold.
		for removed, i := 0, 0; removed <= len(nodes)/2 && i < len(nodes); i++ {
			limited, cancel := context.WithTimeout(ctx, l.nodeTimeout())
			if nodes[i].Del(limited, name(key)).Err() == nil {
				removed++
			}
			cancel()
		}
		return nil
	}
	return cfg
}

// nodeTimeout is far below the TTL.
func (l Lock) nodeTimeout() time.Duration { return l.TTL() / 5 }
