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
	"github.com/mortiselock/lock/conformance/flawed/internal/flaw"
)

// Lock is one lock of the collection. Of the servers of one that is slow, the first
// stands still.
type Lock = flaw.Lock

// All lists the broken locks.
func All() []Lock { return []Lock{z19, z20, z21, z21Errors, z22, z23, z23Minority} }

// Healthy lists the locks that the broken ones are made of: over three servers, and
// over three of which one stands still.
func Healthy() []Lock { return []Lock{healthy, healthyFrozen} }

// onNodes makes a client of the lock out of a healthy one.
type onNodes struct {
	// nodes is how many servers it needs. The server is a list of as many
	// [*goredis.Client], which obey the deadlines of contexts.
	nodes  int
	change func(textbook) backend.Backend
	// asLocker changes the Locker; nil, it stays as it is.
	asLocker func(*lock.Client) lock.Locker
}

// Make implements flaw.Maker.
func (on onNodes) Make(_ context.Context, l Lock, server any) (conformance.Config, error) {
	nodes := server.([]*goredis.Client)
	ttl := time.Second
	if l.Slow {
		ttl = 3 * time.Second // every request waits for a server that stands still
	}
	nodeTimeout := ttl / 5
	cfg := conformance.Config{TTL: ttl}
	open := func(context.Context) (backend.Backend, error) {
		return on.change(textbook{nodes: nodes, timeout: nodeTimeout}), nil
	}
	if on.asLocker == nil {
		cfg.OpenBackend = open
	} else {
		cfg.Open = func(ctx context.Context) (lock.Locker, error) {
			b, err := open(ctx)
			if err != nil {
				return nil, err
			}
			inner, err := lock.New(b, &lock.Options{TTL: ttl})
			if err != nil {
				return nil, err
			}
			return on.asLocker(inner), nil
		}
	}
	cfg.Remove = func(ctx context.Context, key string) error {
		// A majority, which is enough to end a hold.
		for removed, i := 0, 0; removed <= len(nodes)/2 && i < len(nodes); i++ {
			limited, cancel := context.WithTimeout(ctx, nodeTimeout)
			if nodes[i].Del(limited, name(key)).Err() == nil {
				removed++
			}
			cancel()
		}
		return nil
	}
	return cfg, nil
}
