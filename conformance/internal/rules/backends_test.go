package rules_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	memlock "github.com/mortiselock/lock/memory"
)

// A rule that cannot fail proves nothing: each mutant below breaks one thing in a
// healthy lock, and the rules that are about it must fail.

// memory is a Config on a store of its own.
func memory() conformance.Config {
	store := memlock.NewStore(nil)
	return conformance.Config{
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return memlock.NewBackend(ctx, &memlock.Options{Store: store})
		},
		TTL: 300 * time.Millisecond, Budget: 5 * time.Second,
	}
}

// mutant is a memory backend with methods replaced.
type mutant struct {
	*everything
	try     func(ctx context.Context, req backend.Request) (backend.Grant, error)
	renew   func(ctx context.Context, h backend.Hold) (backend.Validity, error)
	release func(ctx context.Context, h backend.Hold) error
	g       func(g backend.Guarantees) backend.Guarantees
}

// everything is everything that the memory backend can do, and what the mutants of
// one store share.
type everything struct {
	backend.Backend
	backend.Watcher
	backend.BatchRenewer
	backend.Inspector
	backend.ForceReleaser
	backend.Lister
	shared *shared
}

type shared struct {
	mu    sync.Mutex
	last  map[string]backend.Hold // the last hold granted, by key
	since map[string]time.Time
	asked map[string]backend.Holder // by whom a key was asked for first
	n     int
}

func (m *mutant) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := m.try(ctx, req)
	if err == nil {
		m.shared.mu.Lock()
		m.shared.last[req.Key], m.shared.since[req.Key] = backend.HoldOf(req), time.Now()
		m.shared.mu.Unlock()
	}
	return g, err
}

func (m *mutant) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	return m.renew(ctx, h)
}

func (m *mutant) Release(ctx context.Context, h backend.Hold) error { return m.release(ctx, h) }

func (m *mutant) Guarantees() backend.Guarantees { return m.g(m.Backend.Guarantees()) }

// RenewBatch is left to single renewals, so that a mutated Renew counts.
func (m *mutant) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	out := make([]backend.Renewal, len(holds))
	for i, h := range holds {
		out[i].Validity, out[i].Err = m.Renew(ctx, h)
	}
	return out
}

func (s *shared) lastOf(key string) backend.Hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last[key]
}

func (s *shared) next() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	return s.n
}

// mutate is a Config on a memory store whose backends are changed.
func mutate(change func(m *mutant)) conformance.Config {
	cfg := memory()
	healthy := cfg.OpenBackend
	sh := &shared{last: map[string]backend.Hold{}, since: map[string]time.Time{}, asked: map[string]backend.Holder{}}
	cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
		b, err := healthy(ctx)
		if err != nil {
			return nil, err
		}
		m := &mutant{
			everything: &everything{b, b.(backend.Watcher), b.(backend.BatchRenewer), b.(backend.Inspector), b.(backend.ForceReleaser), b.(backend.Lister), sh},
			try:        b.Try, renew: b.Renew, release: b.Release,
			g: func(g backend.Guarantees) backend.Guarantees { return g },
		}
		change(m)
		return m, nil
	}
	return cfg
}

// grantsFor has the server keep a grant for another time than its holder is told.
func grantsFor(change func(ttl time.Duration) time.Duration) func(*mutant) {
	return func(m *mutant) {
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			ttl := req.TTL
			req.TTL = change(ttl)
			g, err := m.Backend.Try(ctx, req)
			g.For = backend.ValidFor(ttl)
			return g, err
		}
	}
}

// renewsFor is grantsFor for renewals.
func renewsFor(change func(ttl time.Duration) time.Duration) func(*mutant) {
	return func(m *mutant) {
		m.renew = func(ctx context.Context, h backend.Hold) (backend.Validity, error) {
			ttl := h.TTL
			h.TTL = change(ttl)
			v, err := m.Backend.Renew(ctx, h)
			v.For = backend.ValidFor(ttl)
			return v, err
		}
	}
}

// lagsBy is a healthy backend that claims a takeover lag of 30 s, and has the one given.
func lagsBy(lag time.Duration) func(*mutant) {
	return func(m *mutant) {
		longer := func(ttl time.Duration) time.Duration { return ttl + lag }
		grantsFor(longer)(m)
		renewsFor(longer)(m)
		m.g = func(g backend.Guarantees) backend.Guarantees { g.TakeoverLag = 30 * time.Second; return g }
	}
}

// cutIsUnsent says that nothing was sent when the context ends before the answer is there.
func cutIsUnsent(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", backend.ErrNotSent, ctx.Err())
	case <-time.After(time.Millisecond):
		return err
	}
}

// force removes the record of a key, whoever's it is.
func (m *mutant) force(ctx context.Context, key string) error {
	rec, err := m.Inspect(ctx, key)
	if err != nil {
		return err
	}
	return m.ForceRelease(ctx, key, rec.Token)
}

// forgetful remembers the tokens that were ended by force.
type forgetful struct {
	backend.ForceReleaser
	ended sync.Map
}

func (f *forgetful) ForceRelease(ctx context.Context, key string, token uint64) error {
	err := f.ForceReleaser.ForceRelease(ctx, key, token)
	if err == nil {
		f.ended.Store(key, token)
	}
	return err
}

// shows has holders shown after the change.
func (m *mutant) shows(change func(h *backend.Holder)) {
	m.Inspector = changedInspector{m.Inspector, change}
	m.Lister = changedLister{m.Lister, change}
}

type changedInspector struct {
	backend.Inspector
	change func(h *backend.Holder)
}

func (c changedInspector) Inspect(ctx context.Context, key string) (backend.Record, error) {
	rec, err := c.Inspector.Inspect(ctx, key)
	c.change(&rec.Holder)
	return rec, err
}

type changedLister struct {
	backend.Lister
	change func(h *backend.Holder)
}

func (c changedLister) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	return c.Lister.List(ctx, prefix, func(rec backend.Record) bool { c.change(&rec.Holder); return visit(rec) })
}

func TestMutantBackends(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		rules  string
		change func(m *mutant)
	}{
		"none": {"", func(*mutant) {}},
		"healthy, and claims a lag of up to 30 s that it has not": {"", lagsBy(0)},
		"healthy, and lags by 30 s":                               {"", lagsBy(30 * time.Second)},
		"healthy, and tells nothing of holders": {"", func(m *mutant) {
			m.g = func(g backend.Guarantees) backend.Guarantees { g.HolderDetails = false; return g }
			m.shows(func(h *backend.Holder) { *h = backend.Holder{} })
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.Backend.Try(ctx, req)
				if errors.Is(err, backend.ErrHeld) {
					err = &backend.HeldError{Key: req.Key}
				}
				return g, err
			}
		}},
		"healthy, and relies on three fifths of each TTL": {"", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.Backend.Try(ctx, req)
				g.For = g.For * 3 / 5
				return g, err
			}
			m.renew = func(ctx context.Context, h backend.Hold) (backend.Validity, error) {
				v, err := m.Backend.Renew(ctx, h)
				v.For = v.For * 3 / 5
				return v, err
			}
		}},
		"a renewal keeps the key for three TTLs": {"CrashFrees", func(m *mutant) {
			m.renew = func(ctx context.Context, h backend.Hold) (backend.Validity, error) {
				ttl := h.TTL
				h.TTL *= 3
				v, err := m.Backend.Renew(ctx, h)
				v.For = min(v.For, backend.ValidFor(ttl))
				return v, err
			}
		}},
		"a renewal that meets another finds its timer stopped": {"LeaseConcurrent", func(m *mutant) {
			var mu sync.Mutex
			m.renew = func(ctx context.Context, h backend.Hold) (backend.Validity, error) {
				if !mu.TryLock() {
					return backend.Validity{}, backend.ErrExpired
				}
				defer mu.Unlock()
				time.Sleep(time.Millisecond)
				return m.Backend.Renew(ctx, h)
			}
		}},
		"folds keys": {"IndependentKeys", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				req.Key = strings.ToLower(req.Key)
				return m.Backend.Try(ctx, req)
			}
		}},
		"keys lose a dot at their end": {"IndependentKeys", renames(func(key string) string {
			if strings.HasSuffix(key, "a.") {
				return key[:len(key)-1]
			}
			return key
		})},
		"a bar in a key is a slash": {"IndependentKeys", renames(func(key string) string { return strings.ReplaceAll(key, "|", "/") })},
		"long keys are cut in the middle": {"IndependentKeys", renames(func(key string) string {
			if len(key) > 255 {
				return key[:200] + key[len(key)-55:]
			}
			return key
		})},
		"long owners are cut in the middle": {"LongestNames", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				if n := len(req.Owner); n > 128 {
					req.Owner = req.Owner[:100] + req.Owner[n-28:]
				}
				return m.Backend.Try(ctx, req)
			}
		}},
		"releases by key": {"ReleaseOwnOnly ReleaseOldLeaseSameClient ReleaseByID RefusalLeavesNothing", func(m *mutant) {
			m.release = func(ctx context.Context, h backend.Hold) error { return m.force(ctx, h.Key) }
		}},
		"release does nothing": {"ReleaseFrees ReleaseDetached TryIsImmediate WaiterWakes CloseEndsHolds CancelDuring", func(m *mutant) {
			m.release = func(context.Context, backend.Hold) error { return nil }
		}},
		"renewal resurrects": {"RenewNeverResurrects RenewByID RenewAfterRelease", func(m *mutant) {
			m.renew = func(ctx context.Context, h backend.Hold) (backend.Validity, error) {
				g, err := m.Backend.Try(ctx, backend.Request{Key: h.Key, ID: h.ID, Owner: h.Owner, TTL: h.TTL})
				if err != nil {
					err = backend.ErrNotHeld
				}
				return g.Validity, err
			}
		}},
		"renewals add up": {"RenewBounded", func(m *mutant) {
			m.renew = func(ctx context.Context, h backend.Hold) (backend.Validity, error) {
				h.TTL *= time.Duration(1 + m.shared.next())
				v, err := m.Backend.Renew(ctx, h)
				v.For = min(v.For, h.TTL)
				return v, err
			}
		}},
		"renewal only says so": {"ServerOutlivesD RenewKeeps RenewByHand HoldOutlivesAcquireCtx RenewTransient", func(m *mutant) {
			m.renew = func(_ context.Context, h backend.Hold) (backend.Validity, error) {
				return backend.Validity{Sent: backend.RuntimeClock().Now(), For: backend.ValidFor(h.TTL)}, nil
			}
		}},
		"renewal shortens": {"RenewKeeps RenewByHand", func(m *mutant) {
			m.renew = func(ctx context.Context, h backend.Hold) (backend.Validity, error) {
				_ = m.Backend.Release(ctx, h)
				return backend.Validity{Sent: backend.RuntimeClock().Now(), For: backend.ValidFor(h.TTL)}, nil
			}
		}},
		"renewal of a key, not of a hold": {"ReleaseStopsRenewal", func(m *mutant) {
			var renewed sync.Map // the keys that somebody has once renewed
			m.renew = func(ctx context.Context, h backend.Hold) (backend.Validity, error) {
				if _, known := renewed.LoadOrStore(h.Key, true); !known {
					go func() {
						for range 300 {
							time.Sleep(h.TTL / 16)
							_, _ = m.Backend.Renew(context.WithoutCancel(ctx), m.shared.lastOf(h.Key))
						}
					}()
				}
				return m.Backend.Renew(ctx, h)
			}
		}},
		"expires early":               {"ServerOutlivesD LostBeforeTakeover", grantsFor(func(ttl time.Duration) time.Duration { return ttl * 9 / 10 })},
		"cuts the TTL to whole steps": {"EveryTTLLasts", grantsFor(func(ttl time.Duration) time.Duration { return ttl.Truncate(300 * time.Millisecond) })},
		"cuts each TTL to two fifths, and says so": {"EveryTTLLasts", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				req.TTL = req.TTL * 2 / 5
				return m.Backend.Try(ctx, req)
			}
		}},
		"cuts a long TTL":                      {"EveryTTLLasts", grantsFor(func(ttl time.Duration) time.Duration { return min(ttl, 2*time.Second) })},
		"records outlive their leases":         {"CrashFrees", grantsFor(func(ttl time.Duration) time.Duration { return ttl + time.Second })},
		"renews to a short TTL":                {"EveryTTLLasts", renewsFor(func(ttl time.Duration) time.Duration { return min(ttl, time.Second) })},
		"renewed records outlive their leases": {"RenewBounded", renewsFor(func(ttl time.Duration) time.Duration { return ttl + time.Second })},
		"a renewal may be a little late":       {"RenewNeverResurrects", grantsFor(func(ttl time.Duration) time.Duration { return ttl + 60*time.Millisecond })},
		"keeps long TTLs in whole seconds": {"ServerOutlivesD", grantsFor(func(ttl time.Duration) time.Duration {
			if ttl < time.Minute {
				return ttl
			}
			return time.Until(time.Now().Add(ttl).Truncate(time.Second))
		})},
		"an id is a number of eight bits": {"ReleaseByID", numbersOfEightBits()},
		"anybody's id releases at times": {"ReleaseByID", func(m *mutant) {
			m.release = func(ctx context.Context, h backend.Hold) error {
				err := m.Backend.Release(ctx, h)
				if err != nil && m.shared.next()%20 == 0 {
					return m.Backend.Release(ctx, m.shared.lastOf(h.Key))
				}
				return err
			}
		}},
		"refusals lengthen the lease": {"CrashFrees HoldersTTLCounts", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.Backend.Try(ctx, req)
				if err != nil {
					h := m.shared.lastOf(req.Key)
					h.TTL = req.TTL
					_, _ = m.Backend.Renew(ctx, h)
				}
				return g, err
			}
		}},
		"the contender's TTL counts": {"HoldersTTLCounts", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				m.shared.mu.Lock()
				since, held := m.shared.since[req.Key]
				m.shared.mu.Unlock()
				if held && time.Since(since) > req.TTL {
					_ = m.force(ctx, req.Key)
				}
				return m.Backend.Try(ctx, req)
			}
		}},
		"validity from nowhere": {"ValidityHonest", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.Backend.Try(ctx, req)
				g.For = req.TTL
				return g, err
			}
		}},
		"the validity of a re-entry is its whole TTL": {"ValidityHonest", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.Backend.Try(ctx, req)
				if g.Holds > 1 {
					g.For = req.TTL
				}
				return g, err
			}
		}},
		"an owner's renewal is valid for its whole TTL": {"ValidityHonest", func(m *mutant) {
			m.renew = func(ctx context.Context, h backend.Hold) (backend.Validity, error) {
				v, err := m.Backend.Renew(ctx, h)
				if h.Owner != "" {
					v.For = h.TTL
				}
				return v, err
			}
		}},
		"an owner whose hold ran out gets its token again": {"ReentrantAfterLoss", func(m *mutant) {
			var last sync.Map // the tokens of owners who have not released
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.Backend.Try(ctx, req)
				if err == nil && req.Owner != "" {
					token, _ := last.LoadOrStore(req.Key+req.Owner, g.Token)
					g.Token = token.(uint64)
				}
				return g, err
			}
			m.release = func(ctx context.Context, h backend.Hold) error {
				last.Delete(h.Key + h.Owner)
				return m.Backend.Release(ctx, h)
			}
		}},
		"an owner's expired holds count": {"ReentrantLimit", func(m *mutant) {
			var mu sync.Mutex
			counted := map[string]int{}
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				mu.Lock()
				defer mu.Unlock()
				if req.Owner != "" && counted[req.Key+req.Owner] == backend.MaxHolds {
					return backend.Grant{}, backend.ErrTooManyHolds
				}
				g, err := m.Backend.Try(ctx, req)
				if err == nil {
					counted[req.Key+req.Owner]++
				}
				return g, err
			}
			m.release = func(ctx context.Context, h backend.Hold) error {
				mu.Lock()
				defer mu.Unlock()
				counted[h.Key+h.Owner]--
				return m.Backend.Release(ctx, h)
			}
		}},
		"a forced release has an owner begin with the token before": {"ForceReleaseByToken", func(m *mutant) {
			f := &forgetful{ForceReleaser: m.ForceReleaser}
			m.ForceReleaser = f
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.Backend.Try(ctx, req)
				if token, ok := f.ended.LoadAndDelete(req.Key); ok && err == nil && req.Owner != "" {
					g.Token = token.(uint64)
				}
				return g, err
			}
		}},
		"one token for all": {"TokenIncreases TokenInGrantOrder TokenSurvivesRelease TokenInTakeoverOrder ReentrantSameToken", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.Backend.Try(ctx, req)
				g.Token = 7
				return g, err
			}
		}},
		"token of its own for every hold": {"ReentrantSameToken TokenStable TryIdempotent", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.Backend.Try(ctx, req)
				g.Token = uint64(m.shared.next())
				return g, err
			}
		}},
		"tokens begin anew with the 600th": {"TokenIncreases", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.Backend.Try(ctx, req)
				if err == nil {
					g.Token = 1 + uint64(m.shared.next()-1)%600
				}
				return g, err
			}
		}},
		"huge token": {"TokenFits", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.Backend.Try(ctx, req)
				g.Token |= 1 << 63
				return g, err
			}
		}},
		"counts to one": {"HoldCount", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.Backend.Try(ctx, req)
				g.Holds = 1
				return g, err
			}
		}},
		"all owners are one": {"ReentrantExplicit ReentrantModel", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				if req.Owner != "" {
					req.Owner = "x"
				}
				return m.Backend.Try(ctx, req)
			}
		}},
		"owners are ignored": {"ReentrantCount ReentrantSameToken ReentrantOwnLeases ReentrantOtherLocker ReentrantLimit ReentrantOverWaiters", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				req.Owner = ""
				return m.Backend.Try(ctx, req)
			}
		}},
		"one hold per owner": {"ReentrantExtends ReentrantCount ReentrantOwnLeases ExpiryIsPerHold", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				last := m.shared.lastOf(req.Key)
				g, err := m.Backend.Try(ctx, req)
				if err == nil && req.Owner != "" && last.Owner == req.Owner && last.ID != req.ID {
					_ = m.Backend.Release(ctx, last)
				}
				return g, err
			}
		}},
		"one expiry per owner": {"ExpiryIsPerHold", func(m *mutant) {
			holds := map[backend.ID]backend.Hold{}
			var mu sync.Mutex
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				mu.Lock()
				defer mu.Unlock()
				holds[req.ID] = backend.HoldOf(req)
				return m.Backend.Try(ctx, req)
			}
			m.renew = func(ctx context.Context, h backend.Hold) (backend.Validity, error) {
				mu.Lock()
				defer mu.Unlock()
				for _, x := range holds {
					if x.Key == h.Key && x.Owner == h.Owner && h.Owner != "" {
						_, _ = m.Backend.Renew(ctx, x)
					}
				}
				return m.Backend.Renew(ctx, h)
			}
			m.release = func(ctx context.Context, h backend.Hold) error {
				if h.Token == 0 || h.Owner != "" && time.Now().IsZero() {
					return m.Backend.Release(ctx, h)
				}
				if ctx.Err() != nil {
					return ctx.Err()
				}
				mu.Lock()
				defer mu.Unlock()
				if x := holds[h.ID]; x.Owner != "" && x.TTL <= 300*time.Millisecond && m.shared.next()%2 == 1 {
					return nil // a lapsed hold that is not given back by its client
				}
				return m.Backend.Release(ctx, h)
			}
		}},
		"wrong refusal at the limit": {"ReentrantLimit", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.Backend.Try(ctx, req)
				if errors.Is(err, backend.ErrTooManyHolds) {
					err = backend.ErrHeld
				}
				return g, err
			}
		}},
		"a renewal that was cut off counts as unsent": {"NotSentIsTrue", func(m *mutant) {
			m.renew = func(ctx context.Context, h backend.Hold) (backend.Validity, error) {
				v, err := m.Backend.Renew(context.WithoutCancel(ctx), h)
				return v, cutIsUnsent(ctx, err)
			}
		}},
		"a release that was cut off counts as unsent, of an owner": {"NotSentIsTrue", func(m *mutant) {
			m.release = func(ctx context.Context, h backend.Hold) error {
				err := m.Backend.Release(context.WithoutCancel(ctx), h)
				if h.Owner == "" {
					return err
				}
				return cutIsUnsent(ctx, err)
			}
		}},
		"ignores the context": {"CancelledSendsNothing", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				return m.Backend.Try(context.WithoutCancel(ctx), req)
			}
		}},
		"tells ids": {"BackendErrors", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.Backend.Try(ctx, req)
				if err != nil {
					err = fmt.Errorf("%w by %s", err, m.shared.lastOf(req.Key).ID.Hex())
				}
				return g, err
			}
		}},
		"tells owners": {"NoSecretsInErrors BackendErrors", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.Backend.Try(ctx, req)
				if err != nil {
					err = fmt.Errorf("%w by %s", err, m.shared.lastOf(req.Key).Owner)
				}
				return g, err
			}
		}},
		"refusal is an own error": {"ErrorsAreTyped BackendErrors TryIsImmediate", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.Backend.Try(ctx, req)
				if errors.Is(err, backend.ErrHeld) {
					err = errors.New("taken")
				}
				return g, err
			}
		}},
		"a refusal without details": {"HeldDetails", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.Backend.Try(ctx, req)
				if errors.Is(err, backend.ErrHeld) {
					err = backend.ErrHeld
				}
				return g, err
			}
		}},
		"a refusal that says that the lease is about to end": {"HeldDetails", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.Backend.Try(ctx, req)
				var held *backend.HeldError
				if errors.As(err, &held) {
					soon := *held
					soon.Remaining = min(held.Remaining, time.Second)
					err = &soon
				}
				return g, err
			}
		}},
		"a refusal that always says the whole TTL": {"HeldDetails", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.Backend.Try(ctx, req)
				var held *backend.HeldError
				if errors.As(err, &held) {
					whole := *held
					whole.Remaining = m.shared.lastOf(req.Key).TTL
					err = &whole
				}
				return g, err
			}
		}},
		"a refusal does not say where the holder is": {"HolderIsShown", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.Backend.Try(ctx, req)
				var held *backend.HeldError
				if errors.As(err, &held) {
					less := *held
					less.Holder.Host, less.Holder.PID = "", 0
					err = &less
				}
				return g, err
			}
		}},
		"what is shown does not say where the holder is": {"InspectShows ListShowsHeldKeys HolderIsShown", func(m *mutant) {
			m.shows(func(h *backend.Holder) { h.Host, h.PID = "", 0 })
		}},
		"labels lose the spaces at their end": {"LongestNames HolderIsShown", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				req.Holder.Label = strings.TrimRight(req.Holder.Label, " ")
				return m.Backend.Try(ctx, req)
			}
		}},
		"labels lose the spaces at their beginning": {"LongestNames HolderIsShown", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				req.Holder.Label = strings.TrimLeft(req.Holder.Label, " ")
				return m.Backend.Try(ctx, req)
			}
		}},
		"a refusal does not say since when": {"HolderIsShown", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.Backend.Try(ctx, req)
				var held *backend.HeldError
				if errors.As(err, &held) {
					less := *held
					less.Holder.Since = time.Time{}
					err = &less
				}
				return g, err
			}
		}},
		"holds are claimed to survive the removal of their record": {"GuaranteesAreStable", func(m *mutant) {
			m.g = func(g backend.Guarantees) backend.Guarantees {
				g.HoldsSurvive = []backend.Fault{backend.FaultRestart, backend.FaultRecordRemoved}
				return g
			}
		}},
		"guarantees have one list for all": {"GuaranteesAreStable", func(m *mutant) {
			var first sync.Once
			var survives []backend.Fault
			m.g = func(g backend.Guarantees) backend.Guarantees {
				first.Do(func() { survives = g.TokenSurvives })
				g.TokenSurvives = survives
				return g
			}
		}},
		"guarantees change with a refusal": {"GuaranteesAreStable", func(m *mutant) {
			var refused atomic.Bool
			try := m.try
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := try(ctx, req)
				if errors.Is(err, backend.ErrHeld) {
					refused.Store(true)
				}
				return g, err
			}
			m.g = func(g backend.Guarantees) backend.Guarantees {
				g.Fair = g.Fair != refused.Load()
				return g
			}
		}},
		"guarantees change with a loss": {"GuaranteesAreStable", func(m *mutant) {
			var lost atomic.Bool
			m.release = func(ctx context.Context, h backend.Hold) error {
				err := m.Backend.Release(ctx, h)
				if errors.Is(err, backend.ErrNotHeld) {
					lost.Store(true)
				}
				return err
			}
			m.g = func(g backend.Guarantees) backend.Guarantees {
				g.LossSignal = g.LossSignal && !lost.Load()
				return g
			}
		}},
		"guarantees change": {"GuaranteesAreStable", func(m *mutant) {
			m.g = func(g backend.Guarantees) backend.Guarantees {
				g.Name += fmt.Sprint(m.shared.next())
				return g
			}
		}},
		"a removed hold is renewed": {"LostOnRemoval ForceReleaseByToken", func(m *mutant) {
			m.renew = func(ctx context.Context, h backend.Hold) (backend.Validity, error) {
				v, err := m.Backend.Renew(ctx, h)
				if errors.Is(err, backend.ErrNotHeld) {
					return backend.Validity{Sent: backend.RuntimeClock().Now(), For: backend.ValidFor(h.TTL)}, nil
				}
				return v, err
			}
		}},
	} {
		atOnce(t, &all, name, func(t *testing.T) { mustFail(t, mutate(c.change), c.rules) })
	}
	all.Wait()
}

// renames has the store keep a key under another name.
func renames(name func(key string) string) func(m *mutant) {
	return func(m *mutant) {
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			req.Key = name(req.Key)
			return m.Backend.Try(ctx, req)
		}
		m.renew = func(ctx context.Context, h backend.Hold) (backend.Validity, error) {
			h.Key = name(h.Key)
			return m.Backend.Renew(ctx, h)
		}
		m.release = func(ctx context.Context, h backend.Hold) error {
			h.Key = name(h.Key)
			return m.Backend.Release(ctx, h)
		}
	}
}

// atOnce runs a subtest beside the others, since mutants mostly wait.
func atOnce(t *testing.T, all *sync.WaitGroup, name string, f func(t *testing.T)) {
	all.Go(func() { t.Run(name, f) })
}

// virtually runs f in a bubble, where waiting takes no time and nothing is late. What
// still waits there in the end is given time to end.
func virtually(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(t)
		time.Sleep(time.Hour)
	})
}

// mustFail runs the named rules in a bubble, one after the other, since one that fails cuts
// others short. All of them must fail. Without names, all rules run and none may fail.
func mustFail(t *testing.T, cfg conformance.Config, rules string) {
	t.Helper()
	virtually(t, func(t *testing.T) {
		if rules == "" {
			cfg.Only = nil
			rep, err := conformance.Check(t.Context(), cfg)
			require.NoError(t, err)
			for _, r := range rep.Results {
				assert.NotEqual(t, conformance.Fail, r.Verdict, "%s: %s", r.Rule, r.Evidence)
			}
		}
		for _, rule := range strings.Fields(rules) {
			cfg.Only = []string{rule}
			rep, err := conformance.Check(t.Context(), cfg)
			require.NoError(t, err)
			for _, r := range rep.Results {
				if r.Verdict != conformance.Fail {
					assert.Fail(t, "the mutant was not caught", "by %s: %s (%s)", r.Rule, r.Verdict, r.Evidence)
				}
				assert.NotContains(t, r.Evidence, "panic", r.Rule)
			}
		}
	})
}

// mustPass runs the named rules in a bubble. None of them may fail.
func mustPass(t *testing.T, cfg conformance.Config, rules string) {
	t.Helper()
	cfg.Only = strings.Fields(rules)
	virtually(t, func(t *testing.T) {
		rep, err := conformance.Check(t.Context(), cfg)
		require.NoError(t, err)
		for _, r := range rep.Results {
			assert.Equal(t, conformance.Pass, r.Verdict, "%s: %s", r.Rule, r.Evidence)
		}
	})
}

// TestCallersWhoLeaveFloodNoServer: while a patient caller waits for a server that
// stands still, those who leave don't go on making requests.
func TestCallersWhoLeaveFloodNoServer(t *testing.T) {
	t.Parallel()
	var hasty, during atomic.Int64
	var once sync.Once
	cfg := mutate(func(m *mutant) {
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			if strings.Contains(req.Key, "/hasty-") {
				hasty.Add(1)
			} else {
				once.Do(func() {
					before := hasty.Load()
					time.Sleep(300 * time.Millisecond)
					during.Store(hasty.Load() - before)
				})
			}
			return m.Backend.Try(ctx, req)
		}
	})
	cfg.Only = []string{"CancelHarmsNobody"}
	report, err := conformance.Check(t.Context(), cfg)
	require.NoError(t, err)
	require.True(t, report.OK(), report)
	require.Positive(t, hasty.Load())
	// Each of the two patient callers is good for a hundred.
	require.LessOrEqual(t, during.Load(), int64(202))
}

// A case that waits on purpose is not given up as stuck because another rule has failed.
func TestLongWaitsBesideAFailure(t *testing.T) {
	t.Parallel()
	cfg := mutate(func(m *mutant) {
		m.g = func(g backend.Guarantees) backend.Guarantees {
			g.Name += fmt.Sprint(m.shared.next())
			return g
		}
	})
	cfg.Only = []string{"GuaranteesAreStable", "RenewKeeps", "WaitOutlastsTTL"}
	virtually(t, func(t *testing.T) {
		rep, err := conformance.Check(t.Context(), cfg)
		require.NoError(t, err)
		require.Equal(t, 1, rep.Counts().Fail, rep)
		require.Equal(t, 2, rep.Counts().Pass, rep)
	})
}

// numbersOfEightBits has a release compare how many grants its hold was granted before, in eight
// bits.
func numbersOfEightBits() func(*mutant) {
	var mu sync.Mutex
	numbers, newest := map[backend.ID]uint8{}, map[string]backend.Hold{}
	counts := map[string]uint8{}
	return func(m *mutant) {
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			g, err := m.Backend.Try(ctx, req)
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				counts[req.Key]++
				numbers[req.ID], newest[req.Key] = counts[req.Key], backend.HoldOf(req)
			}
			return g, err
		}
		m.release = func(ctx context.Context, h backend.Hold) error {
			mu.Lock()
			last, ok := newest[h.Key]
			same := ok && last.ID != h.ID && numbers[last.ID] == numbers[h.ID]
			mu.Unlock()
			if same {
				h = last
			}
			return m.Backend.Release(ctx, h)
		}
	}
}
