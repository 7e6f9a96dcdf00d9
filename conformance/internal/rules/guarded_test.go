package rules_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	memlock "github.com/mortiselock/lock/memory"
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
			cfg := conformance.Config{
				TTL: 300 * time.Millisecond, Budget: 5 * time.Second, Guarantees: &g,
				OpenBackend: func(ctx context.Context) (backend.Backend, error) {
					return memlock.NewBackend(ctx, &memlock.Options{Store: store})
				},
				Guarded: &conformance.GuardedWrite{
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
			rep, err := conformance.Check(t.Context(), cfg)
			if err != nil || rep.Counts().Pass != 2 {
				t.Fatalf("%v\n%s", err, rep)
			}
		})
	}
	all.Wait()
}

// openWrites counts the guarded writes that are under way.
type openWrites struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when n is 0 again
}

func (o *openWrites) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.n++; o.n == 1 {
		o.none = make(chan struct{})
	}
}

func (o *openWrites) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.n--; o.n == 0 {
		close(o.none)
	}
}

// wait waits until nothing is under way.
func (o *openWrites) wait(ctx context.Context) error {
	o.mu.Lock()
	n, none := o.n, o.none
	o.mu.Unlock()
	if n == 0 {
		return nil
	}
	select {
	case <-none:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// renewsBesideNoWrite is a backend whose renewals need what open writes have.
type renewsBesideNoWrite struct {
	backend.Backend
	open *openWrites
}

func (r renewsBesideNoWrite) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	if err := r.open.wait(ctx); err != nil {
		return backend.Validity{}, err
	}
	return r.Backend.Renew(ctx, h)
}

func TestMutantsOfOpenGuardedWrites(t *testing.T) {
	t.Parallel()
	type store struct {
		values *guardedValues
		open   *openWrites
		b      backend.Backend
	}
	whole := func(s *store, ctx context.Context, lease lock.Lease, value string, between func()) error {
		if !s.values.held(ctx, lease) {
			return lock.ErrNotHeld
		}
		s.open.begin()
		between()
		s.open.end()
		s.values.mu.Lock()
		defer s.values.mu.Unlock()
		if !s.values.held(ctx, lease) {
			return lock.ErrNotHeld
		}
		s.values.m[lease.Key()] = value
		return nil
	}
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		fails bool
		wrap  func(s *store, b backend.Backend) backend.Backend
		open  func(s *store, ctx context.Context, lease lock.Lease, value string, between func()) error
	}{
		"nothing is wrong": {open: whole},
		"renewals wait for it": {fails: true, open: whole, wrap: func(s *store, b backend.Backend) backend.Backend {
			return renewsBesideNoWrite{b, s.open}
		}},
		"the key is free meanwhile": {fails: true, open: func(s *store, ctx context.Context, lease lock.Lease, value string, between func()) error {
			_ = lease.Release(ctx)
			between()
			s.values.mu.Lock()
			defer s.values.mu.Unlock()
			s.values.m[lease.Key()] = value
			return nil
		}},
		"it ends the other holds of its owner": {fails: true, open: func(s *store, ctx context.Context, lease lock.Lease, value string, between func()) error {
			if err := whole(s, ctx, lease, value, between); err != nil {
				return err
			}
			return s.b.(backend.ForceReleaser).ForceRelease(ctx, lease.Key(), lease.Token())
		}},
		"it calls nothing between": {fails: true, open: func(s *store, ctx context.Context, lease lock.Lease, value string, _ func()) error {
			return whole(s, ctx, lease, value, func() {})
		}},
	} {
		atOnce(t, &all, name, func(t *testing.T) {
			memory := memlock.NewStore(nil)
			open := func(ctx context.Context) (backend.Backend, error) {
				return memlock.NewBackend(ctx, &memlock.Options{Store: memory})
			}
			b, err := open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			s := &store{&guardedValues{b: b.(backend.Inspector), m: map[string]string{}}, &openWrites{}, b}
			g := b.Guarantees()
			g.GuardedWrite = true
			cfg := conformance.Config{
				TTL: 300 * time.Millisecond, Budget: 5 * time.Second, Guarantees: &g,
				OpenBackend: func(ctx context.Context) (backend.Backend, error) {
					b, err := open(ctx)
					if err == nil && c.wrap != nil {
						b = c.wrap(s, b)
					}
					return b, err
				},
				Guarded: &conformance.GuardedWrite{
					Write: func(ctx context.Context, lease lock.Lease, value string) error {
						return whole(s, ctx, lease, value, func() {})
					},
					Open: func(ctx context.Context, lease lock.Lease, value string, between func()) error {
						return c.open(s, ctx, lease, value, between)
					},
					Read: s.values.read,
				},
			}
			if c.fails {
				mustFail(t, cfg, "GuardedWriteHoldsUpNobody")
				return
			}
			cfg.Only = []string{"guarded writes"}
			rep, err := conformance.Check(t.Context(), cfg)
			if err != nil || rep.Counts().Pass != 3 {
				t.Fatalf("%v\n%s", err, rep)
			}
		})
	}
	all.Wait()
}
