package rules_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mortiselock/lock/backend"
	memlock "github.com/mortiselock/lock/backend/memory"
	"github.com/mortiselock/lock/conformance"
)

// Mutants of what servers bring along: sessions, connections, steps of several
// commands. The flawed locks over real servers have them too; these need none.

// handsOver has a hand-over of its own.
type handsOver struct {
	*mutant
	handOver func(ctx context.Context, m *mutant, from backend.Hold, to backend.Request) (backend.Grant, error)
}

func (m handsOver) HandOver(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
	return m.handOver(ctx, m.mutant, from, to)
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
		"releases and tries, whatever the release said": {"HandOverIsOneStep", func(ctx context.Context, m *mutant, from backend.Hold, to backend.Request) (backend.Grant, error) {
			_ = m.Release(ctx, from)
			return m.Try(ctx, to)
		}},
		"says that somebody else is due": {"HandOverIsOneStep", func(ctx context.Context, m *mutant, from backend.Hold, _ backend.Request) (backend.Grant, error) {
			_ = m.Release(ctx, from)
			return backend.Grant{}, backend.ErrHeld
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
			cfg := mutate(func(*mutant) {})
			open := cfg.OpenBackend
			cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
				b, err := open(ctx)
				return handsOver{b.(*mutant), c.handOver}, err
			}
			if c.rules != "" {
				mustFail(t, cfg, c.rules)
				return
			}
			cfg.Only = []string{"HandOverIsOneStep"}
			rep, err := conformance.Check(t.Context(), cfg)
			if err != nil || rep.Counts().Pass != 1 {
				t.Fatalf("%v\n%s", err, rep)
			}
		})
	}
}

// TestMutantPool leaves something behind on the connections that it was given.
func TestMutantPool(t *testing.T) {
	t.Parallel()
	var settings atomic.Int64
	cfg := mutate(func(m *mutant) {
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			settings.Store(1)
			return m.Backend.Try(ctx, req)
		}
	})
	cfg.Pool = func(context.Context) (string, error) { return fmt.Sprint("timeout=", settings.Load()), nil }
	mustFail(t, cfg, "PoolClean")
}

// sessions are places in the queue of a store, each of which ends with its client's
// session.
type sessions struct {
	backend.Backend
	backend.Queuer
	store *sessionStore
}

type sessionStore struct {
	careless bool // a wait that ends is taken for a grant

	mu   sync.Mutex
	last map[string]backend.Ticket // by key
}

func (s sessions) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	t, err := s.Queuer.Enqueue(ctx, req)
	if err != nil {
		return nil, err
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.store.last[req.Key] = t
	return sessionPlace{t, s.store}, nil
}

func (s *sessionStore) end(ctx context.Context, key string) error {
	s.mu.Lock()
	t := s.last[key]
	s.mu.Unlock()
	return t.Withdraw(ctx)
}

type sessionPlace struct {
	backend.Ticket
	store *sessionStore
}

func (p sessionPlace) Wait(ctx context.Context) (backend.Grant, error) {
	g, err := p.Ticket.Wait(ctx)
	if err != nil && ctx.Err() == nil && p.store.careless {
		return backend.Grant{Token: 1, Holds: 1, Validity: backend.Validity{Sent: backend.RuntimeClock().Now(), For: time.Second}}, nil
	}
	return g, err
}

// sessionConfig is a lock with sessions, over a queue in memory.
func sessionConfig(careless bool) conformance.Config {
	store, ended := memlock.NewStore(nil), &sessionStore{careless: careless, last: map[string]backend.Ticket{}}
	cfg := memory()
	cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
		b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store, Queue: true})
		if err != nil {
			return nil, err
		}
		return sessions{b, b.(backend.Queuer), ended}, nil
	}
	cfg.EndSession = ended.end
	return cfg
}

func TestMutantSessions(t *testing.T) {
	t.Parallel()
	mustFail(t, sessionConfig(true), "WaiterSessionCheck")
	healthy := sessionConfig(false)
	healthy.Only = []string{"WaiterSessionCheck"}
	rep, err := conformance.Check(t.Context(), healthy)
	if res := rep.Results[0]; err != nil || res.Verdict != conformance.Pass {
		t.Errorf("with a look at the session: %s (%s, %v)", res.Verdict, res.Evidence, err)
	}
}
