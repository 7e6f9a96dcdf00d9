package conformance

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	memlock "github.com/mortiselock/lock/backend/memory"
)

// guardedValues are values beside the locks of a store in memory.
type guardedValues struct {
	b  backend.Inspector
	mu sync.Mutex
	m  map[string]string
}

func (g *guardedValues) read(_ context.Context, key string) (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.m[key], nil
}

// held asks the store who has the key.
func (g *guardedValues) held(ctx context.Context, lease lock.Lease) bool {
	rec, err := g.b.Inspect(ctx, lease.Key())
	return err == nil && rec.Token == lease.Token()
}

func TestMutantsOfGuardedWrites(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		rule  string
		write func(g *guardedValues, ctx context.Context, lease lock.Lease, value string) error
	}{
		"nothing is wrong": {"", func(g *guardedValues, ctx context.Context, lease lock.Lease, value string) error {
			g.mu.Lock()
			defer g.mu.Unlock()
			if !g.held(ctx, lease) {
				return lock.ErrNotHeld
			}
			g.m[lease.Key()] = value
			return nil
		}},
		"it does not look": {"GuardedWriteWhileHeld", func(g *guardedValues, _ context.Context, lease lock.Lease, value string) error {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.m[lease.Key()] = value
			return nil
		}},
		"it asks the lease and not the store": {"GuardedWriteWhileHeld", func(g *guardedValues, _ context.Context, lease lock.Lease, value string) error {
			if lease.Context().Err() != nil {
				return lock.ErrNotHeld
			}
			g.mu.Lock()
			defer g.mu.Unlock()
			g.m[lease.Key()] = value
			return nil
		}},
		"it refuses and writes": {"GuardedWriteWhileHeld", func(g *guardedValues, ctx context.Context, lease lock.Lease, value string) error {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.m[lease.Key()] = value
			if !g.held(ctx, lease) {
				return lock.ErrNotHeld
			}
			return nil
		}},
		"it looks and then writes": {"GuardedWriteNeverLate", func(g *guardedValues, ctx context.Context, lease lock.Lease, value string) error {
			if !g.held(ctx, lease) {
				return lock.ErrNotHeld
			}
			if value != "new" {
				time.Sleep(40 * time.Millisecond)
			}
			g.mu.Lock()
			defer g.mu.Unlock()
			g.m[lease.Key()] = value
			return nil
		}},
	} {
		atOnce(t, &all, name, func(t *testing.T) {
			store := memlock.NewStore(nil)
			inspector, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: store})
			if err != nil {
				t.Fatal(err)
			}
			values := &guardedValues{b: inspector.(backend.Inspector), m: map[string]string{}}
			g := inspector.Guarantees()
			g.GuardedWrite = true
			cfg := Config{
				TTL: 300 * time.Millisecond, Budget: 5 * time.Second, Guarantees: &g,
				OpenBackend: func(ctx context.Context) (backend.Backend, error) {
					return memlock.NewBackend(ctx, &memlock.Options{Store: store})
				},
				Guarded: &GuardedWrite{
					Write: func(ctx context.Context, lease lock.Lease, value string) error {
						return c.write(values, ctx, lease, value)
					},
					Read: values.read,
				},
			}
			if c.rule != "" {
				mustFail(t, cfg, c.rule)
				return
			}
			cfg.Only = []string{"guarded writes"}
			rep, err := Check(t.Context(), cfg)
			if err != nil || rep.Counts().Pass != 2 {
				t.Fatalf("%v\n%s", err, rep)
			}
		})
	}
	all.Wait()
}
