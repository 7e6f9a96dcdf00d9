package rules_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// Mutants that treat an owner's calls for one key in another way while it waits for another key.

// ownersWaits counts the calls of Acquire that each owner has under way through a Locker.
type ownersWaits struct {
	mu    sync.Mutex
	waits map[string]int
}

// count adds a call of the owner, and returns what ends it.
func (o *ownersWaits) count(owner string) (end func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.waits == nil {
		o.waits = map[string]int{}
	}
	o.waits[owner]++
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.waits[owner]--; o.waits[owner] == 0 {
			delete(o.waits, owner)
		}
	}
}

func (o *ownersWaits) any(owner string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.waits[owner] > 0
}

// takesTurns has an owner's Acquire wait until no other one of the owner waits: for the keys that the
// owner holds, or for the others.
func takesTurns(held bool) func() func(*lockerMutant, backend.Backend) {
	return alone(func(m *lockerMutant, _ backend.Backend) {
		var waits ownersWaits
		var own sync.Map
		m.lease = func(_ context.Context, l *leaseMutant) {
			id := l.Key() + "\x00" + l.set.Owner
			own.Store(id, true)
			context.AfterFunc(l.Lease.Context(), func() { own.Delete(id) })
		}
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			owner := with(opts).Owner
			if owner == "" {
				return m.Client.Acquire(ctx, key, opts...)
			}
			for _, ok := own.Load(key + "\x00" + owner); ok == held && waits.any(owner); {
				select {
				case <-ctx.Done():
					return nil, heldNow(m, ctx, key, opts)
				case <-time.After(5 * time.Millisecond):
				}
			}
			defer waits.count(owner)()
			return m.Client.Acquire(ctx, key, opts...)
		}
	})
}

// triesLater has an owner's tries be made a second later while it waits, if they match.
func triesLater(matches func(err error) bool) func() func(*lockerMutant, backend.Backend) {
	return alone(func(m *lockerMutant, _ backend.Backend) {
		var waits ownersWaits
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			if owner := with(opts).Owner; owner != "" {
				defer waits.count(owner)()
			}
			return m.Client.Acquire(ctx, key, opts...)
		}
		m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, err := m.Client.TryAcquire(ctx, key, opts...)
			if owner := with(opts).Owner; owner != "" && waits.any(owner) && matches(err) {
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
				}
			}
			return l, err
		}
	})
}

var ownersElsewhere = map[string]waitMutant{
	"an owner waits for one key at a time":                                 {rule: "IndependentKeys", says: "which its own owner waits for", change: takesTurns(false)},
	"an owner who waits enters no key by Acquire":                          {rule: "IndependentKeys", says: "its owner holds it, and waits for another key", change: takesTurns(true)},
	"an owner's try waits while the owner waits for another key":           {rule: "TryIsImmediate", says: "of an owner who waits for another key,", change: triesLater(func(err error) bool { return err != nil })},
	"an owner's try is granted late while the owner waits for another key": {rule: "TryIsImmediate", says: "by an owner who waits for another key, returned", change: triesLater(func(err error) bool { return err == nil })},
}

func TestMutantsOfOwnersElsewhere(t *testing.T) {
	t.Parallel()
	mustSayAll(t, ownersElsewhere)
}
