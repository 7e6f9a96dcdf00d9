package conformance_test

import (
	"context"
	"fmt"
	"math/rand/v2"
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
			assert.Empty(t, verdicts(rep, conformance.Inconclusive), "%s", rep)
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
				assert.Empty(t, verdicts(rep, conformance.Inconclusive), "%s", rep)
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
// back. No two take equally long, since in virtual time those that leave together would
// arrive in the same order every time.
type distant struct {
	backend.Backend
	half time.Duration
}

func (d distant) Unwrap() backend.Backend { return d.Backend }

func (d distant) travel(ctx context.Context) error {
	t := time.NewTimer(d.half - rand.N(d.half/16+1))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// there asks the server there.
func there[T any](ctx context.Context, d distant, ask func() (T, error)) (answer T, err error) {
	if err := d.travel(ctx); err != nil {
		return answer, err
	}
	answer, err = ask()
	if late := d.travel(ctx); late != nil {
		var nothing T
		return nothing, late
	}
	return answer, err
}

func (d distant) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	return there(ctx, d, func() (backend.Grant, error) { return d.Backend.Try(ctx, req) })
}

func (d distant) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	return there(ctx, d, func() (backend.Validity, error) { return d.Backend.Renew(ctx, h) })
}

func (d distant) Release(ctx context.Context, h backend.Hold) error {
	_, err := there(ctx, d, func() (bool, error) { return true, d.Backend.Release(ctx, h) })
	return err
}

func (d distant) ReleaseTelling(ctx context.Context, h backend.Hold) (others int, err error) {
	return there(ctx, d, func() (int, error) { return d.Backend.(backend.ReleaseTeller).ReleaseTelling(ctx, h) })
}

func (d distant) HandOver(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
	return there(ctx, d, func() (backend.Grant, error) { return d.Backend.(backend.HandOverer).HandOver(ctx, from, to) })
}

func (d distant) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	renewals, err := there(ctx, d, func() ([]backend.Renewal, error) {
		return d.Backend.(backend.BatchRenewer).RenewBatch(ctx, holds), nil
	})
	if err == nil {
		return renewals
	}
	renewals = make([]backend.Renewal, len(holds))
	for i := range renewals {
		renewals[i].Err = err
	}
	return renewals
}
