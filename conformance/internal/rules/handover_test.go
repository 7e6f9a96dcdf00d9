package rules_test

import (
	"context"
	"testing"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
)

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
