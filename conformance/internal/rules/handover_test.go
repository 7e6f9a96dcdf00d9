package rules_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
)

// handsOver has a hand-over of its own, and something of its own to do with what was
// handed over.
type handsOver struct {
	*mutant
	handOver func(ctx context.Context, m *mutant, from backend.Hold, to backend.Request) (backend.Grant, error)
	handed   *sync.Map // what was handed over, by ID and by token
	list     func(visit func(backend.Record) bool) func(backend.Record) bool
	revoke   func() error // of what was handed over
	force    func() error // of what was handed over
}

func (m handsOver) HandOver(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
	g, err := m.handOver(ctx, m.mutant, from, to)
	if err == nil {
		m.handed.Store(to.ID, to)
		m.handed.Store(g.Token, to)
	}
	return g, err
}

// was reports whether it was handed over, by its ID or token.
func (m handsOver) was(what any) bool {
	_, ok := m.handed.Load(what)
	return ok
}

func (m handsOver) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	if m.list != nil {
		visit = m.list(visit)
	}
	return m.mutant.List(ctx, prefix, visit)
}

func (m handsOver) ForceRelease(ctx context.Context, key string, token uint64) error {
	if m.force != nil && m.was(token) {
		return m.force()
	}
	return m.mutant.ForceRelease(ctx, key, token)
}

func (m handsOver) Revoke(ctx context.Context, key string, token uint64) error {
	if m.revoke != nil && m.was(token) {
		return m.revoke()
	}
	return m.Backend.(backend.Revoker).Revoke(ctx, key, token)
}

// onlySaysRenewed renews what passes the test only in words.
func onlySaysRenewed(test func(h backend.Hold) bool) func(m *handsOver) {
	return func(m *handsOver) {
		m.renew = func(ctx context.Context, h backend.Hold) (backend.Validity, error) {
			if m.was(h.ID) && test(h) {
				return backend.Validity{Sent: backend.RuntimeClock().Now(), For: backend.ValidFor(h.TTL)}, nil
			}
			return m.Backend.Renew(ctx, h)
		}
	}
}

func TestMutantHandOver(t *testing.T) {
	t.Parallel()
	healthy := func(ctx context.Context, m *mutant, from backend.Hold, to backend.Request) (backend.Grant, error) {
		return m.Backend.(backend.HandOverer).HandOver(ctx, from, to)
	}
	for name, c := range map[string]struct {
		rules    string
		handOver func(ctx context.Context, m *mutant, from backend.Hold, to backend.Request) (backend.Grant, error)
	}{
		"nothing is wrong": {"", healthy},
		"hands over what has expired": {"HandOverIsOneStep", func(ctx context.Context, m *mutant, from backend.Hold, to backend.Request) (backend.Grant, error) {
			g, err := healthy(ctx, m, from, to)
			if errors.Is(err, backend.ErrNotHeld) && m.shared.lastOf(from.Key).ID == from.ID && from.TTL < time.Second {
				return m.Try(ctx, to)
			}
			return g, err
		}},
		"keeps the owner of the hold before": {"HandOverIsOneStep", func(ctx context.Context, m *mutant, from backend.Hold, to backend.Request) (backend.Grant, error) {
			if from.Owner != "" && to.Owner != "" {
				to.Owner = from.Owner
			}
			return healthy(ctx, m, from, to)
		}},
		"lets the owner of the hold before in": {"HandOverIsOneStep", func(ctx context.Context, m *mutant, from backend.Hold, to backend.Request) (backend.Grant, error) {
			if from.Owner != "" {
				to.Owner = from.Owner
			}
			return healthy(ctx, m, from, to)
		}},
		"shows the holder before": {"HandOverIsOneStep HolderIsShown", func(ctx context.Context, m *mutant, from backend.Hold, to backend.Request) (backend.Grant, error) {
			if rec, err := m.Inspect(ctx, from.Key); err == nil {
				to.Holder = rec.Holder
			}
			return healthy(ctx, m, from, to)
		}},
		"nothing is wrong, and a lag is claimed that there is not": {"", healthy},
		"releases and tries, whatever the release said": {"HandOverIsOneStep", func(ctx context.Context, m *mutant, from backend.Hold, to backend.Request) (backend.Grant, error) {
			_ = m.Release(ctx, from)
			return m.Try(ctx, to)
		}},
		"says that somebody else is due": {"HandOverIsOneStep", func(ctx context.Context, m *mutant, from backend.Hold, _ backend.Request) (backend.Grant, error) {
			_ = m.Release(ctx, from)
			return backend.Grant{}, backend.ErrHeld
		}},
		"keeps the owner to itself": {"HandOverIsOneStep", func(ctx context.Context, m *mutant, from backend.Hold, to backend.Request) (backend.Grant, error) {
			to.Owner = ""
			return healthy(ctx, m, from, to)
		}},
		"takes off no allowance": {"HandOverIsOneStep", func(ctx context.Context, m *mutant, from backend.Hold, to backend.Request) (backend.Grant, error) {
			g, err := healthy(ctx, m, from, to)
			g.For = to.TTL
			return g, err
		}},
		"is dated by its answer": {"HandOverIsOneStep", func(ctx context.Context, m *mutant, from backend.Hold, to backend.Request) (backend.Grant, error) {
			g, err := healthy(ctx, m, from, to)
			g.Sent = g.Sent.Add(time.Millisecond)
			return g, err
		}},
		"keeps the token": {"HandOverIsOneStep", func(ctx context.Context, m *mutant, from backend.Hold, to backend.Request) (backend.Grant, error) {
			g, err := healthy(ctx, m, from, to)
			g.Token = from.Token
			return g, err
		}},
		"ends nothing": {"HandOverIsOneStep", func(ctx context.Context, m *mutant, from backend.Hold, _ backend.Request) (backend.Grant, error) {
			v, err := m.Renew(ctx, from)
			return backend.Grant{Token: from.Token + 1, Holds: 1, Validity: v}, err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			change := func(*mutant) {}
			if strings.Contains(name, "a lag is claimed") {
				change = lagsBy(0)
			}
			cfg := handingOver(change, func(m *handsOver) { m.handOver = c.handOver })
			if c.rules != "" {
				mustFail(t, cfg, c.rules)
				return
			}
			mustPass(t, cfg, "HandOverIsOneStep")
		})
	}
}

// handingOver is a Config with a healthy hand-over, and with what is changed.
func handingOver(store func(*mutant), change func(m *handsOver)) conformance.Config {
	cfg := mutate(store)
	open := cfg.OpenBackend
	var handed sync.Map
	cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
		b, err := open(ctx)
		m := &handsOver{mutant: b.(*mutant), handed: &handed, handOver: func(ctx context.Context, m *mutant, from backend.Hold, to backend.Request) (backend.Grant, error) {
			return m.Backend.(backend.HandOverer).HandOver(ctx, from, to)
		}}
		change(m)
		return m, err
	}
	return cfg
}

// TestMutantAfterHandOver: what was handed over is not like other holds.
func TestMutantAfterHandOver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rules  string
		change func(m *handsOver)
	}{
		"is renewed in words only":              {"HandOverIsOneStep RenewKeeps", onlySaysRenewed(func(backend.Hold) bool { return true })},
		"is renewed in words only, of an owner": {"HandOverIsOneStep", onlySaysRenewed(func(h backend.Hold) bool { return h.Owner != "" })},
		"is missing in the list": {"HandOverIsOneStep HolderIsShown", func(m *handsOver) {
			m.list = func(visit func(backend.Record) bool) func(backend.Record) bool {
				return func(r backend.Record) bool { return m.was(r.Token) || visit(r) }
			}
		}},
		"is not released by force":           {"HandOverIsOneStep", func(m *handsOver) { m.force = func() error { return backend.ErrNotHeld } }},
		"is released by force in words only": {"HandOverIsOneStep", func(m *handsOver) { m.force = func() error { return nil } }},
		"is not revoked":                     {"HandOverIsOneStep", func(m *handsOver) { m.revoke = func() error { return backend.ErrNotHeld } }},
		"is revoked in words only":           {"HandOverIsOneStep", func(m *handsOver) { m.revoke = func() error { return nil } }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mustFail(t, handingOver(func(*mutant) {}, c.change), c.rules)
		})
	}
}

// handsOverInQueue is a queue in memory with a hand-over. While a place waits, it does what ahead says.
type handsOverInQueue struct {
	placed
	mu    *sync.Mutex
	ahead func(ctx context.Context, b handsOverInQueue, rec backend.Record, from backend.Hold, to backend.Request) (backend.Grant, error)
	kept  map[backend.ID]backend.Hold // what was handed over past a place, by the new id
	gone  map[backend.ID]bool         // from which that was
}

func (b handsOverInQueue) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.placed.Try(ctx, req)
}

func (b handsOverInQueue) Release(ctx context.Context, h backend.Hold) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone[h.ID] {
		return backend.ErrNotHeld
	}
	if kept, ok := b.kept[h.ID]; ok {
		h = kept
	}
	return b.placed.Release(ctx, h)
}

func (b handsOverInQueue) HandOver(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	rec, err := b.Inspect(ctx, from.Key)
	if err != nil {
		return backend.Grant{}, err
	}
	if rec.Waiters > 0 {
		return b.ahead(ctx, b, rec, from, to)
	}
	return b.releaseAndTry(ctx, from, to)
}

func (b handsOverInQueue) releaseAndTry(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
	if err := b.placed.Release(ctx, from); err != nil {
		return backend.Grant{}, err
	}
	return b.placed.Try(ctx, to)
}

func (b handsOverInQueue) granted(rec backend.Record, to backend.Request) backend.Grant {
	return backend.Grant{Token: rec.Token + 1, Holds: 1, Validity: backend.Validity{Sent: b.Clock().Now(), For: backend.ValidFor(to.TTL)}}
}

func TestMutantsOfHandOverInAQueue(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rule, says string
		ahead      func(ctx context.Context, b handsOverInQueue, rec backend.Record, from backend.Hold, to backend.Request) (backend.Grant, error)
	}{
		"the place is due": {"", "", func(ctx context.Context, b handsOverInQueue, _ backend.Record, from backend.Hold, to backend.Request) (backend.Grant, error) {
			return b.releaseAndTry(ctx, from, to)
		}},
		"the place is passed over": {"", "", func(_ context.Context, b handsOverInQueue, rec backend.Record, from backend.Hold, to backend.Request) (backend.Grant, error) {
			b.kept[to.ID], b.gone[from.ID] = from, true
			return b.granted(rec, to), nil
		}},
		"who can't hand over keeps the key": {"HandOverIsOneStep", "after its HandOver returned an error matching ErrHeld", func(_ context.Context, _ handsOverInQueue, rec backend.Record, from backend.Hold, _ backend.Request) (backend.Grant, error) {
			return backend.Grant{}, &backend.HeldError{Key: from.Key, Holder: rec.Holder, Remaining: rec.Remaining}
		}},
		"the place and the request are granted": {"HandOverIsOneStep", "expected that it goes on waiting", func(ctx context.Context, b handsOverInQueue, rec backend.Record, from backend.Hold, to backend.Request) (backend.Grant, error) {
			return b.granted(rec, to), b.placed.Release(ctx, from)
		}},
		"what is handed over past a place is released, too": {"HandOverIsOneStep", "that was handed over while a place waited", func(_ context.Context, b handsOverInQueue, rec backend.Record, from backend.Hold, to backend.Request) (backend.Grant, error) {
			b.kept[to.ID] = from
			return b.granted(rec, to), nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mu, kept, gone := &sync.Mutex{}, map[backend.ID]backend.Hold{}, map[backend.ID]bool{}
			cfg := onMemory(true, func(b backend.Backend) backend.Backend {
				return handsOverInQueue{b.(placed), mu, c.ahead, kept, gone}
			})
			if c.says != "" {
				mustSay(t, cfg, c.rule, c.says)
				return
			}
			mustPass(t, cfg, "HandOverIsOneStep")
		})
	}
}
