package conformance_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
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
	for name, c := range map[string]struct{ longest, far time.Duration }{
		"a tenth": {time.Second, 100 * time.Millisecond}, "a fifth": {time.Second, 200 * time.Millisecond},
		"a quarter": {time.Second, 250 * time.Millisecond}, "a third": {time.Second, 333 * time.Millisecond},
		"near": {200 * time.Millisecond, 0}, "a tenth of 200 ms": {200 * time.Millisecond, 20 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := memlock.NewStore(nil)
			rep := check(t, conformance.Config{Budget: time.Minute, OpenBackend: func(ctx context.Context) (backend.Backend, error) {
				b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store})
				if err != nil {
					return nil, err
				}
				return shortTTLs{distant{b, c.far / 2}, c.longest}, nil
			}})
			if c.far == 0 {
				assert.Empty(t, verdicts(rep, conformance.Inconclusive))
			}
			t.Logf("%s in %.0f s", rep.Counts(), rep.Seconds)
		})
	}
}

// A healthy lock is not accused because its server fails now and then, at once and without a
// word of what it has done.
func TestServerThatFailsNowAndThen(t *testing.T) {
	t.Parallel()
	everyWay := []faultlock.Fault{faultlock.FailBefore(), faultlock.Drop(), faultlock.FailAfter()}
	for name, often := range map[string]float64{"1 of 20": 0.05, "1 of 50": 0.02} {
		for _, queue := range []bool{false, true} {
			if os.Getenv("LOCK_TEST_LONG") == "" && (queue || often < 0.05) {
				continue
			}
			t.Run(fmt.Sprintf("%s, queue %t", name, queue), func(t *testing.T) {
				t.Parallel()
				cfg := memoryConfig(queue, time.Minute)
				open := cfg.OpenBackend
				cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
					b, err := open(ctx)
					if err != nil {
						return nil, err
					}
					random := &faultlock.Random{Active: 1, Chance: often / float64(len(everyWay)), Faults: everyWay}
					return faultlock.New(b, &faultlock.Options{Random: random}).Backend(), nil
				}
				rep := check(t, cfg)
				res, _ := rep.Result(verdicts(rep, conformance.Inconclusive)[0])
				assert.Contains(t, res.Evidence, "the server fails now and then")
				t.Logf("%s in %.0f s", rep.Counts(), rep.Seconds)
			})
		}
	}
}

// shortTTLs is a backend that grants no longer TTL.
type shortTTLs struct {
	distant
	longest time.Duration
}

func (s shortTTLs) Guarantees() backend.Guarantees {
	g := s.distant.Guarantees()
	g.MaxTTL = s.longest
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
