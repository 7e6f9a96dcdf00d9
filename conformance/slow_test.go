package conformance_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	memlock "github.com/mortiselock/lock/memory"
)

// A healthy lock is not accused because its server is far away.
func TestDistantServer(t *testing.T) {
	t.Parallel()
	for name, far := range map[string]time.Duration{
		"30 ms": 30 * time.Millisecond, "100 ms": 100 * time.Millisecond, "300 ms": 300 * time.Millisecond,
		"100 ms, by Open": 100 * time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := memlock.NewStore(nil)
			open := func(ctx context.Context) (backend.Backend, error) {
				b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store})
				if err != nil {
					return nil, err
				}
				return distant{b, far / 2}, nil
			}
			cfg := conformance.Config{Budget: time.Minute, OpenBackend: open}
			if strings.HasSuffix(name, "by Open") {
				cfg.OpenBackend = nil
				cfg.Open = func(ctx context.Context) (lock.Locker, error) {
					b, err := open(ctx)
					if err != nil {
						return nil, err
					}
					return lock.New(b, nil)
				}
			}
			rep := check(t, cfg)
			assert.Empty(t, verdicts(rep, conformance.Inconclusive))
			t.Logf("%s in %.0f s", rep.Counts(), rep.Seconds)
		})
	}
}

// A healthy lock is not accused because its longest TTL is short beside its requests.
func TestDistantServerOfShortTTLs(t *testing.T) {
	t.Parallel()
	for name, far := range map[string]time.Duration{"a tenth": 100 * time.Millisecond, "a fifth": 200 * time.Millisecond, "a quarter": 250 * time.Millisecond, "a third": 333 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := memlock.NewStore(nil)
			rep := check(t, conformance.Config{Budget: time.Minute, OpenBackend: func(ctx context.Context) (backend.Backend, error) {
				b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store})
				if err != nil {
					return nil, err
				}
				return shortTTLs{distant{b, far / 2}}, nil
			}})
			t.Logf("%s in %.0f s", rep.Counts(), rep.Seconds)
		})
	}
}

// shortTTLs is a backend that grants no TTL above a second.
type shortTTLs struct{ distant }

func (s shortTTLs) Guarantees() backend.Guarantees {
	g := s.distant.Guarantees()
	g.MaxTTL = time.Second
	return g
}

// distant is a backend whose requests take a while on their way, and again on their way
// back.
type distant struct {
	backend.Backend
	half time.Duration
}

func (d distant) Unwrap() backend.Backend { return d.Backend }

func (d distant) travel(ctx context.Context) error {
	t := time.NewTimer(d.half)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d distant) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if err := d.travel(ctx); err != nil {
		return backend.Grant{}, err
	}
	g, err := d.Backend.Try(ctx, req)
	if late := d.travel(ctx); late != nil {
		return backend.Grant{}, late
	}
	return g, err
}

func (d distant) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	if err := d.travel(ctx); err != nil {
		return backend.Validity{}, err
	}
	v, err := d.Backend.Renew(ctx, h)
	if late := d.travel(ctx); late != nil {
		return backend.Validity{}, late
	}
	return v, err
}

func (d distant) Release(ctx context.Context, h backend.Hold) error {
	if err := d.travel(ctx); err != nil {
		return err
	}
	err := d.Backend.Release(ctx, h)
	if late := d.travel(ctx); late != nil {
		return late
	}
	return err
}
