// Package wait brings a caller of Acquire from the call to the lease, and a lease to its
// release, which is when somebody else's wait ends. docs/design/waiting.md shows the way
// from a release to the next grant.
package wait

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/call"
	"github.com/mortiselock/lock/internal/hold"
)

// Waits are those of one Locker for the keys of its server.
type Waits struct {
	server *call.Server
	leases *hold.Leases
	lanes  lanes

	// What the backend can do. Abilities are nil when they are missing.
	watcher  backend.Watcher
	queuer   backend.Queuer
	handOver backend.HandOverer
	teller   backend.ReleaseTeller

	unwatched atomic.Bool // the backend has declined to watch a key
	handsOver atomic.Bool // the backend has handed a key over
	unhanded  atomic.Bool // the backend has declined to, before it ever did
}

// mayHandOver reports whether a release may take a waiter along.
func (c *Waits) mayHandOver() bool { return c.handOver != nil && !c.unhanded.Load() }

// watches reports whether waiters are told of releases. Otherwise they poll.
func (c *Waits) watches() bool { return c.watcher != nil && !c.unwatched.Load() }

// New returns the waits of a Locker, of which there are none yet.
func New(s *call.Server, leases *hold.Leases) *Waits {
	c := &Waits{server: s, leases: leases, lanes: lanes{m: map[laneKey]*lane{}}}
	c.watcher, _ = backend.As[backend.Watcher](s.Own)
	c.queuer, _ = backend.As[backend.Queuer](s.Own)
	c.teller, _ = backend.As[backend.ReleaseTeller](s.Own)
	if !s.Counted {
		c.handOver, _ = backend.As[backend.HandOverer](s.Own)
	} else if c.queuer != nil {
		c.queuer, _ = s.Backend.(backend.Queuer)
	}
	return c
}

// TryAcquire asks the server once. Without an error the lease is not nil.
func (c *Waits) TryAcquire(ctx context.Context, req backend.Request, longest time.Duration) (*Lease, error) {
	a := c.acquisition(req, longest)
	l, err := a.try(ctx)
	return l, a.ended(ctx, l, err)
}

// Acquire waits until the key is held or ctx ends. Without an error the lease is not nil.
func (c *Waits) Acquire(ctx context.Context, req backend.Request, longest time.Duration) (*Lease, error) {
	a := c.acquisition(req, longest)
	l, err := a.contend(ctx)
	return l, a.ended(ctx, l, err)
}
