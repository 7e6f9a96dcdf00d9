package rules_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	memlock "github.com/mortiselock/lock/memory"
)

// usedKeys is a store that remembers when each key was granted last.
type usedKeys struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// cleanMutant is memlock with a clean-up by age. Its mutants decide otherwise.
type cleanMutant struct {
	operated
	keys   *usedKeys
	refuse func(olderThan time.Duration) bool
	old    func(key string, age, olderThan time.Duration, held *backend.Record) bool
	remove func(key string, dryRun bool) bool
	told   func(n int, dryRun bool) int
}

func (m *cleanMutant) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := m.operated.Try(ctx, req)
	if err == nil {
		m.keys.mu.Lock()
		defer m.keys.mu.Unlock()
		m.keys.last[req.Key] = time.Now()
	}
	return g, err
}

func (m *cleanMutant) Cleanup(ctx context.Context, olderThan time.Duration, dryRun bool) (n int, err error) {
	if m.refuse(olderThan) {
		return 0, backend.ErrInvalid
	}
	m.keys.mu.Lock()
	defer m.keys.mu.Unlock()
	for key, used := range m.keys.last {
		var held *backend.Record
		if rec, err := m.Inspect(ctx, key); err == nil {
			held = &rec
		}
		if !m.old(key, time.Since(used), olderThan, held) {
			continue
		}
		n++
		if m.remove(key, dryRun) {
			delete(m.keys.last, key)
		}
	}
	return m.told(n, dryRun), ctx.Err()
}

// cleaning is a Config for such locks.
func cleaning(change func(m *cleanMutant)) conformance.Config {
	on := func(store *memlock.Store, keys *usedKeys) func(context.Context) (backend.Backend, error) {
		return func(ctx context.Context) (backend.Backend, error) {
			b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store})
			if err != nil {
				return nil, err
			}
			m := &cleanMutant{
				operated: b.(operated), keys: keys,
				refuse: func(olderThan time.Duration) bool { return olderThan <= 0 },
				old: func(_ string, age, olderThan time.Duration, held *backend.Record) bool {
					return held == nil && age > olderThan
				},
				remove: func(_ string, dryRun bool) bool { return !dryRun },
				told:   func(n int, _ bool) int { return n },
			}
			change(m)
			return m, nil
		}
	}
	keys := func() *usedKeys { return &usedKeys{last: map[string]time.Time{}} }
	return conformance.Config{
		TTL: 300 * time.Millisecond, Budget: 5 * time.Second,
		OpenBackend: on(memlock.NewStore(nil), keys()),
		Untouched: func(context.Context) (conformance.Store, error) {
			own := keys()
			return conformance.Store{
				Open: on(memlock.NewStore(nil), own),
				Contents: func(context.Context) (string, error) {
					own.mu.Lock()
					defer own.mu.Unlock()
					return fmt.Sprint(len(own.last), " keys"), nil
				},
			}, nil
		},
	}
}

func TestMutantsOfCleanUp(t *testing.T) {
	t.Parallel()
	mustPass(t, cleaning(func(*cleanMutant) {}), "CleanupByAge")
	for says, change := range map[string]func(m *cleanMutant){
		"before a clean-up that was a dry run": func(m *cleanMutant) { // which removes
			m.remove = func(string, bool) bool { return true }
		},
		"right after what it counts had been removed": func(m *cleanMutant) { // which was not
			m.remove = func(string, bool) bool { return false }
		},
		"was used since the case began": func(m *cleanMutant) { // the age does not count
			m.old = func(_ string, _, _ time.Duration, held *backend.Record) bool { return held == nil }
		},
		"which would be everything": func(m *cleanMutant) { // and is
			m.refuse = func(time.Duration) bool { return false }
		},
		"although keys were used before": func(m *cleanMutant) { // ages are never reached
			m.old = func(string, time.Duration, time.Duration, *backend.Record) bool { return false }
		},
		"in a dry run before": func(m *cleanMutant) { // which counts alone
			m.told = func(n int, dryRun bool) int {
				if dryRun {
					return n
				}
				return 0
			}
		},
		"it is held, and only what is kept of unused keys": func(m *cleanMutant) { // the age alone counts
			m.old = func(key string, age, olderThan time.Duration, held *backend.Record) bool {
				if age > olderThan && held != nil {
					_ = m.ForceRelease(context.Background(), key, held.Token)
				}
				return held == nil && age > olderThan
			}
		},
	} {
		mustSay(t, cleaning(change), "CleanupByAge", says)
	}
	// takes has some of what is held go with what is not.
	takes := func(says string, held func(age time.Duration, rec *backend.Record) bool) {
		mustSay(t, cleaning(func(m *cleanMutant) {
			m.old = func(key string, age, olderThan time.Duration, rec *backend.Record) bool {
				if rec == nil || !held(age, rec) {
					return rec == nil && age > olderThan
				}
				return age > olderThan && m.ForceRelease(context.Background(), key, rec.Token) == nil
			}
		}), "CleanupByAge", says)
	}
	takes("it was revoked and has not expired", func(_ time.Duration, rec *backend.Record) bool { return rec.Revoked })
	takes("it is held, and only what is kept of unused keys", func(age time.Duration, rec *backend.Record) bool {
		return age > 600*time.Millisecond && rec.Remaining < time.Second // its first TTL has passed
	})
}
