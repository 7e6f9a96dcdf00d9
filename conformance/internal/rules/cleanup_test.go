package rules_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
	// along has what is held go with what is cleaned up and not held, if its key passes the test.
	along := func(test func(old, held string) bool) {
		mustSay(t, cleaning(func(m *cleanMutant) {
			m.remove = func(old string, dryRun bool) bool {
				var like []backend.Record
				_ = m.List(context.Background(), "", func(rec backend.Record) bool {
					if test(old, rec.Key) {
						like = append(like, rec)
					}
					return true
				})
				for _, rec := range like {
					if !dryRun {
						_ = m.ForceRelease(context.Background(), rec.Key, rec.Token)
					}
				}
				return !dryRun
			}
		}), "CleanupByAge", "it is held, and only what is kept of unused keys")
	}
	along(func(old, held string) bool { return strings.HasPrefix(held, old) })
	along(func(old, held string) bool { return strings.HasPrefix(held, old+"/") })
	for _, wild := range []string{"_", "%"} { // a pattern in SQL
		along(func(old, held string) bool {
			like := strings.ReplaceAll(regexp.QuoteMeta(old), wild, map[string]string{"_": ".", "%": ".*"}[wild])
			return regexp.MustCompile("^" + like + "$").MatchString(held)
		})
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

// keptTokens is what a store keeps of tokens: a floor for all keys, and the last token of each key
// that was granted above it.
type keptTokens struct {
	mu    sync.Mutex
	floor uint64
	last  map[string]uint64
}

// aboveFloor is a store with a clean-up that counts the tokens itself once its floor is raised.
type aboveFloor struct {
	*cleanMutant
	kept    *keptTokens
	cleaned func(k *keptTokens, n int, dryRun bool) int
}

func (m aboveFloor) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := m.cleanMutant.Try(ctx, req)
	m.kept.mu.Lock()
	defer m.kept.mu.Unlock()
	if above := max(m.kept.floor, m.kept.last[req.Key]); err == nil && above > 0 {
		g.Token = above + 1
		m.kept.last[req.Key] = g.Token
	}
	return g, err
}

func (m aboveFloor) RaiseFloor(_ context.Context, above uint64) error {
	m.kept.mu.Lock()
	defer m.kept.mu.Unlock()
	m.kept.floor = max(m.kept.floor, above)
	return nil
}

func (m aboveFloor) Cleanup(ctx context.Context, olderThan time.Duration, dryRun bool) (int, error) {
	n, err := m.cleanMutant.Cleanup(ctx, olderThan, dryRun)
	m.kept.mu.Lock()
	defer m.kept.mu.Unlock()
	return m.cleaned(m.kept, n, dryRun), err
}

// cleaningFloors is a Config for such locks.
func cleaningFloors(cleaned func(k *keptTokens, n int, dryRun bool) int) conformance.Config {
	cfg := cleaning(func(*cleanMutant) {})
	untouched := cfg.Untouched
	cfg.Untouched = func(ctx context.Context) (conformance.Store, error) {
		store, err := untouched(ctx)
		open, kept := store.Open, &keptTokens{last: map[string]uint64{}}
		store.Open = func(ctx context.Context) (backend.Backend, error) {
			b, err := open(ctx)
			if err != nil {
				return nil, err
			}
			return aboveFloor{b.(*cleanMutant), kept, cleaned}, nil
		}
		return store, err
	}
	return cfg
}

func TestMutantsOfCleanUpAboveAFloor(t *testing.T) {
	t.Parallel()
	forgets := func(k *keptTokens, dryRun bool) {
		if !dryRun {
			clear(k.last)
		}
	}
	mustPass(t, cleaningFloors(func(k *keptTokens, n int, dryRun bool) int {
		if !dryRun {
			for _, token := range k.last {
				k.floor = max(k.floor, token)
			}
		}
		forgets(k, dryRun)
		return n
	}), "CleanupByAge")
	for says, cleaned := range map[string]func(k *keptTokens, n int, dryRun bool) int{
		"which was granted after RaiseFloor": func(k *keptTokens, n int, dryRun bool) int { // a key counts from the floor again
			forgets(k, dryRun)
			return n
		},
		"was given for a new key after RaiseFloor": func(k *keptTokens, n int, dryRun bool) int { // the floor is removed like a key
			if !dryRun {
				k.floor = 0
			}
			return n
		},
		"a floor is no key": func(k *keptTokens, n int, dryRun bool) int { // which is counted as one
			if k.floor > 0 {
				n++
			}
			return n
		},
	} {
		mustSay(t, cleaningFloors(cleaned), "CleanupByAge", says)
	}
}

// countedStore counts the clients of a store that are open.
type countedStore struct {
	*cleanMutant
	open *atomic.Int32
}

func (s countedStore) Close() error {
	s.open.Add(-1)
	return s.cleanMutant.Close()
}

// A store of its own of which the second client can't be opened: the first one is closed with the
// case all the same.
func TestAStoreOfItsOwnIsClosedWhenTheCaseEndsEarly(t *testing.T) {
	t.Parallel()
	var opened, open atomic.Int32
	cfg := cleaning(func(*cleanMutant) {})
	untouched := cfg.Untouched
	cfg.Untouched = func(ctx context.Context) (conformance.Store, error) {
		store, err := untouched(ctx)
		inner := store.Open
		store.Open = func(ctx context.Context) (backend.Backend, error) {
			if opened.Add(1) > 1 {
				return nil, errors.New("no more connections")
			}
			b, err := inner(ctx)
			if err != nil {
				return nil, err
			}
			open.Add(1)
			return countedStore{b.(*cleanMutant), &open}, nil
		}
		return store, err
	}
	mustSay(t, cfg, "CleanupByAge", "a store that nobody has used could not be opened: no more connections")
	require.EqualValues(t, 2, opened.Load())
	require.Zero(t, open.Load())
}
