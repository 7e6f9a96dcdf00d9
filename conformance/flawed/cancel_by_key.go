package flawed

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z113 = Lock{
	ID: "Z113", Title: "a waiter that takes the renewal of the holder along",
	Summary: "A caller that gives up stops what renews the key, for the caller that holds it.",
	Seen:    "One table of cancel functions by key, and a deferred clean-up on every way out that is an error.",
	Instead: "Whoever has not started something does not stop it: name it by the lease.",
	File:    "cancel_by_key.go", Over: Memory,
	Rule: "HoldOutlivesAcquireCtx",
	Also: []string{"EndedContexts", "WaiterGivesUp", "CloseEndsWaits", "WaiterOrderLocal"},
	On: onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker {
		return &cancelByKey{policy: policy{l}, stops: map[string]context.CancelFunc{}}
	}),
}

// cancelByKey knows what renews a key, by the key.
//
//	A1: Acquire("import") -> granted, renewed every 3 s
//	A2, in the same process: Acquire("import") -> its context ends, and stops["import"] is called
//	A1 works on; 15 s later B is granted the key
//
// Caught by HoldOutlivesAcquireCtx, beside one of whose leases a waiter gives up.
//
// Instead: a cancel function in each lease.
type cancelByKey struct {
	policy
	mu    sync.Mutex
	stops map[string]context.CancelFunc
}

// Acquire implements lock.Locker.
func (c *cancelByKey) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return c.renewing(ctx, key, opts)(c.policy.Acquire(ctx, key, slices.Concat(opts, []lock.Option{lock.WithoutRenewal()})...))
}

// TryAcquire implements lock.Locker.
func (c *cancelByKey) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return c.renewing(ctx, key, opts)(c.policy.TryAcquire(ctx, key, slices.Concat(opts, []lock.Option{lock.WithoutRenewal()})...))
}

func (c *cancelByKey) renewing(ctx context.Context, key string, opts []lock.Option) func(lock.Lease, error) (lock.Lease, error) {
	return func(lease lock.Lease, err error) (lock.Lease, error) {
		set, _ := lock.ResolveOptions(opts...)
		c.mu.Lock()
		defer c.mu.Unlock()
		if err != nil {
			if stop := c.stops[key]; stop != nil && ctx.Err() != nil {
				stop()
			}
			return nil, err
		}
		if set.NoRenewal {
			return lease, nil
		}
		renewing, stop := context.WithCancel(lease.Context())
		c.stops[key] = stop
		context.AfterFunc(lease.Context(), func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			delete(c.stops, key)
		})
		go func() {
			for rest(renewing, cmp.Or(set.TTL, TTL)/5) {
				_ = renewal(lease, cmp.Or(set.TTL, TTL))
			}
		}()
		return lease, nil
	}
}
