package rules_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// Mutants of Lockers that are right for a call that names its TTL and one option at most.
func TestMutantsOfCallsWithoutATTL(t *testing.T) {
	t.Parallel()
	// forgets changes the options of the calls that match.
	forgets := func(matches func(s lock.Settings) bool, change func(s *lock.Settings)) func() func(*lockerMutant, backend.Backend) {
		return alone(func(m *lockerMutant, _ backend.Backend) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					if matches(with(opts)) {
						opts = rewritten(opts, change)
					}
					return get(ctx, key, opts...)
				}
			})
		})
	}
	bare := func(s lock.Settings) bool { return s.TTL == 0 }
	noLabel := func(s *lock.Settings) { s.Label = "" }
	var all sync.WaitGroup
	for name, c := range map[string]waitMutant{
		"a maximum hold needs a TTL beside it": {rule: "MaxHoldEnds", says: "the maximum hold, which was 525ms", change: forgets(bare, func(s *lock.Settings) { s.MaxHold = 0 })},
		"a label needs a TTL beside it":        {rule: "HeldDetails", says: "whose lease without a TTL has", change: forgets(bare, noLabel)},
		"a limited lease has no label":         {rule: "HeldDetails", says: "a maximum hold", change: forgets(func(s lock.Settings) bool { return s.MaxHold > 0 }, noLabel)},
		"an owner's limited lease has no label": {rule: "HeldDetails", says: "has a maximum hold, and an owner", change: forgets(func(s lock.Settings) bool {
			return s.MaxHold > 0 && s.Owner != ""
		}, noLabel)},
		"who names no TTL is not told who holds the key": {rule: "HeldDetails", says: "the refusal does not name the holder", change: alone(func(m *lockerMutant, _ backend.Backend) {
			m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := m.Client.TryAcquire(ctx, key, opts...)
				if held := (*lock.HeldError)(nil); bare(with(opts)) && errors.As(err, &held) {
					return nil, &lock.HeldError{Key: key}
				}
				return l, err
			}
		})},
		"the TTL of a refused call is kept for its key": {rule: "OptionsOfOneCall", says: "after a refused call with a TTL", change: alone(func(m *lockerMutant, _ backend.Backend) {
			var kept sync.Map
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					set := with(opts)
					if ttl, ok := kept.Load(key); ok && set.TTL == 0 {
						opts = append(opts, ttl.(lock.Option))
					}
					l, err := get(ctx, key, opts...)
					if kept.Delete(key); errors.Is(err, lock.ErrHeld) && set.TTL > 0 {
						kept.Store(key, lock.WithTTL(set.TTL))
					}
					return l, err
				}
			})
		})},
		"those with a TTL go first": {rule: "WaiterOrderLocal", says: "were served in the order", change: alone(func(m *lockerMutant, _ backend.Backend) {
			inTurn(m, func(callers []*caller) *caller {
				for _, c := range callers {
					if c.TTL > 0 {
						return c
					}
				}
				return callers[0]
			})
		})},
	} {
		atOnce(t, &all, name, func(t *testing.T) { mustSay(t, c.config(), c.rule, c.says) })
	}
	all.Wait()
}
