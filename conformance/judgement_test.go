package conformance

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
)

// standStill has the machine stand still, as far as the case can tell.
func (e *env) standStill(d time.Duration) {
	e.stalls.mu.Lock()
	defer e.stalls.mu.Unlock()
	e.stalls.stalls = append(e.stalls.stalls, stall{time.Now(), d})
}

func TestLateIsInconclusiveWhereSomethingWasHeldUp(t *testing.T) {
	t.Parallel()
	var ttls []time.Duration
	res := one(t, memory(), &rule{run: func(e *env) {
		if ttls = append(ttls, e.ttl); len(ttls) == 1 {
			e.standStill(200 * ms)
			e.latef("", "too late")
		}
	}})
	assert.Equal(t, Pass, res.Verdict, res.Evidence)
	require.Len(t, ttls, 2)
	assert.GreaterOrEqual(t, ttls[1], delaysPerTTL*200*ms, "what held it up is a small part of the next TTL")

	runs := 0
	res = one(t, memory(), &rule{run: func(e *env) {
		runs++
		e.standStill(time.Minute)
		e.latef("", "too late")
	}})
	assert.Equal(t, Inconclusive, res.Verdict, "neither kept nor broken")
	assert.Equal(t, attempts, runs)
	assert.Contains(t, res.Evidence, "held up for 1m0s")
	assert.Contains(t, res.Evidence, "too late")

	runs = 0
	cfg := memory()
	cfg.Repeat = func(r Result) bool {
		assert.Equal(t, Result{Rule: "Made", Subject: "made", Statement: "A made-up rule.", Verdict: Inconclusive, Evidence: r.Evidence}, r)
		return runs < 2
	}
	res = one(t, cfg, &rule{run: func(e *env) {
		runs++
		e.standStill(time.Minute)
		e.latef("", "too late")
	}})
	assert.Equal(t, Inconclusive, res.Verdict)
	assert.Equal(t, 2, runs, "no more often than the Config wants")

	runs = 0
	res = one(t, memory(), &rule{run: func(e *env) {
		runs++
		e.standStill(time.Minute)
		e.failf("", "wrong, whenever it comes")
	}})
	assert.Equal(t, Fail, res.Verdict)
	assert.Equal(t, 1, runs)
	assert.Contains(t, res.Evidence, "held up for up to 1m0s")

	runs = 0
	res = one(t, memory(), &rule{run: func(e *env) {
		runs++
		e.standStill(time.Minute)
		e.latef(e.key("a"), "too late")
		e.failf(e.key("b"), "wrong, whenever it comes")
	}})
	assert.Equal(t, Fail, res.Verdict, "what is late elsewhere excuses nothing")
	assert.Equal(t, 1, runs)
}

// An expectation that a hold is there rests on its own time.
func TestHoldsAreJudgedByTheirOwnTime(t *testing.T) {
	t.Parallel()
	breaks := func(e *env, h grip) { e.failf(h.(*seamHold).key, "somebody else was granted it") }
	grant := func(e *env, ttl time.Duration) *seamHold {
		return e.backend().mustTry(e.request(e.key("a"), "", ttl))
	}
	for name, c := range map[string]struct {
		run  func(e *env)
		want Verdict
	}{
		"it is there":        {func(e *env) { breaks(e, grant(e, e.long)) }, Fail},
		"it has run out":     {func(e *env) { h := grant(e, e.ttl); e.pause(e.ttl); breaks(e, h) }, Inconclusive},
		"it was left to":     {func(e *env) { h := grant(e, e.ttl); e.expire(h); breaks(e, h) }, Fail},
		"it was released":    {func(e *env) { h := grant(e, e.ttl); _ = h.release(e.ctx); e.pause(e.ttl); breaks(e, h) }, Fail},
		"another one's time": {func(e *env) { grant(e, e.ttl); e.pause(e.ttl); e.failf(e.key("b"), "wrong") }, Fail},
		"the last renewal": {func(e *env) {
			h := grant(e, e.ttl)
			e.pause(e.ttl / 2)
			_ = h.renew()
			e.pause(e.ttl * 6 / 10)
			breaks(e, h)
		}, Fail},
		"its release came too late": {func(e *env) {
			h := grant(e, e.ttl)
			e.pause(e.ttl + e.takeover(0))
			_ = h.release(e.ctx)
			breaks(e, h)
		}, Inconclusive},
		"its release failed in time": {func(e *env) {
			h := grant(e, e.long)
			_ = h.endedBy(e, func() error { return h.s.release(e.ctx, stranger(h.h)) })
			breaks(e, h)
		}, Fail},
		"its release unheard": {func(e *env) {
			h := e.locker().mustTry(e.key("a"))
			h.mustRelease()
			h.unheard(leastTimeout, fmt.Errorf("%w: i/o timeout", backend.ErrOutcomeUnknown))
			e.failf(h.key, "it is still held")
		}, Inconclusive},
		"before it was judged": {func(e *env) { e.tooSlowf("", "the machine stood still") }, Inconclusive},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			virtually(t, func(t *testing.T) {
				cfg := memory()
				cfg.TTL = time.Second
				cfg.Repeat = func(Result) bool { return false }
				res := one(t, cfg, &rule{run: c.run})
				assert.Equal(t, c.want, res.Verdict, res.Evidence)
			})
		})
	}
}

// slowly answers after a while, as a slow server does.
type slowly struct {
	backend.Backend
	by time.Duration
}

func (s slowly) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := s.Backend.Try(ctx, req)
	time.Sleep(s.by)
	return g, err
}

// stalling is a server whose renewals take long.
type stalling struct {
	backend.Backend
	by time.Duration
}

func (s stalling) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	v, err := s.Backend.Renew(ctx, h)
	time.Sleep(s.by)
	return v, err
}

// Renewals that a Locker sends by itself are requests, too, and so are those of a Locker
// whose requests meet faults. The faults themselves are no excuse.
func TestSlowRenewalsExcuseALoss(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stall time.Duration
		fault faultlock.Fault
		want  Verdict
	}{
		"a slow server":                 {800 * ms, faultlock.Pass(), Inconclusive},
		"answers lost of a slow server": {300 * ms, faultlock.FailAfter(), Inconclusive},
		"requests lost":                 {0, faultlock.FailBefore(), Fail},
		"requests that hang":            {0, faultlock.HangBefore(), Fail},
		"answers that are late":         {0, faultlock.DelayAfter(time.Second), Fail},
	} {
		for _, via := range []seamKind{primitives, whole} {
			t.Run(name+", "+via.name, func(t *testing.T) {
				t.Parallel()
				virtually(t, func(t *testing.T) {
					cfg := memory()
					cfg.TTL = time.Second
					cfg.Repeat = func(Result) bool { return false }
					healthy := cfg.OpenBackend
					cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
						b, err := healthy(ctx)
						return stalling{b, c.stall}, err
					}
					res := one(t, cfg, &rule{run: func(e *env) {
						a, f := e.faultyAt(via, nil)
						h := a.mustTryFor(e.key("a"), e.ttl)
						f.All(c.fault, toKeep...)
						e.within(10*time.Second, h.lease.Context().Done())
						h.mustLive("it is renewed")
					}})
					assert.Equal(t, c.want, res.Verdict, res.Evidence)
				})
			})
		}
	}
}

// A wait that ends before the server has answered can't tell of a holder. That is the lock's
// fault only where answers come sooner.
func TestRefusalsThatAreNotTold(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		by   time.Duration
		want Verdict
	}{
		"a slow server": {time.Second, Inconclusive},
		"a swift one":   {time.Millisecond, Fail},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			virtually(t, func(t *testing.T) {
				cfg := memory()
				cfg.TTL = 20 * time.Second
				cfg.Repeat = func(Result) bool { return false }
				healthy := cfg.OpenBackend
				cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
					b, err := healthy(ctx)
					return slowly{b, c.by}, err
				}
				res := one(t, cfg, &rule{run: func(e *env) {
					a, key := e.locker(), e.key("a")
					a.mustTry(key)
					waits := &client{e: e, who: "client 2", l: unanswered{a.l}, closed: -1}
					_, _ = waits.givesUp(key, true, new(lateness))
				}})
				assert.Equal(t, c.want, res.Verdict, res.Evidence)
			})
		})
	}
}

// unanswered never hears of a holder.
type unanswered struct{ lock.Locker }

func (u unanswered) Acquire(ctx context.Context, _ string, _ ...lock.Option) (lock.Lease, error) {
	<-ctx.Done()
	return nil, fmt.Errorf("%w: %w", ctx.Err(), lock.ErrOutcomeUnknown)
}

func TestSlowServerGetsLongerTTLs(t *testing.T) {
	t.Parallel()
	virtually(t, slowServerGetsLongerTTLs)
}

func slowServerGetsLongerTTLs(t *testing.T) {
	cfg := memory()
	healthy := cfg.OpenBackend
	cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
		b, err := healthy(ctx)
		return slowly{b, 100 * ms}, err
	}
	ask := &rule{run: func(e *env) {
		s := e.backend()
		e.each(20, func(i int) { s.mustTry(e.request(e.key("%d", i), "", e.long)) })
	}}
	var ttl time.Duration
	look := &rule{run: func(e *env) { ttl = e.ttl }}
	results := judged(t, cfg, ask, look)
	assert.NotEqual(t, Fail, results[0].Verdict)
	assert.NotEqual(t, Fail, results[1].Verdict)
	assert.GreaterOrEqual(t, ttl, requestsPerTTL*100*ms)

	s := settings{ttl: time.Second}
	assert.Equal(t, time.Second, s.nextTTL(0, 0))
	assert.Equal(t, 2*time.Second, s.nextTTL(time.Second, 0))
	assert.Equal(t, 6*time.Second, s.nextTTL(time.Second, 200*ms))
	assert.Equal(t, longestRepeat, s.nextTTL(time.Second, time.Hour))
	short := &rule{Limit: 40 * time.Second, LimitTTLs: 20}
	assert.Equal(t, time.Minute, s.limit(short, time.Second))
	for range 64 {
		s.pace.add(100 * ms)
	}
	assert.Equal(t, 3*time.Minute, s.limit(short, time.Second))
	s.g.MaxTTL, s.g.MinTTL, s.fixed = time.Second, time.Second, true
	assert.Equal(t, time.Second, s.nextTTL(time.Second, time.Hour), "no other can be had")
}

// unheard says that the server has not answered, after a while.
type unheard struct {
	backend.Backend
	after time.Duration
}

func (s unheard) Try(context.Context, backend.Request) (backend.Grant, error) {
	time.Sleep(s.after)
	return backend.Grant{}, fmt.Errorf("%w: i/o timeout", backend.ErrUnavailable)
}

func TestNoAnswerIsInconclusive(t *testing.T) {
	t.Parallel()
	for after, want := range map[time.Duration]Verdict{0: Fail, 2 * leastTimeout: Inconclusive} {
		cfg := memory()
		healthy := cfg.OpenBackend
		cfg.Repeat = func(Result) bool { return false }
		cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
			b, err := healthy(ctx)
			return unheard{b, after}, err
		}
		cfg.TTL = 10 * time.Second
		res := one(t, cfg, &rule{run: func(e *env) { e.backend().mustTry(e.request(e.key("a"), "", e.long)) }})
		assert.Equal(t, want, res.Verdict, res.Evidence)
	}
}

func TestHangingIsNotSlow(t *testing.T) {
	t.Parallel()
	virtually(t, hangingIsNotSlow)
}

func hangingIsNotSlow(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	res := one(t, memory(), &rule{Limit: 2 * time.Second, run: func(e *env) {
		e.standStill(50 * ms)
		c := e.locker()
		c.l = stuck{c.l, release}
		_, _ = c.try(e.key("stuck"))
	}})
	assert.Equal(t, Fail, res.Verdict, "whatever the machine does")

	n := 0
	cfg := memory()
	cfg.Repeat = func(Result) bool { return false }
	res = one(t, cfg, &rule{Limit: 500 * ms, run: func(e *env) {
		s := e.backend()
		for {
			n++
			_ = s.mustTry(e.request(e.key("%d", n), "", e.long)).release(e.ctx)
			e.standStill(time.Second)
			e.pause(ms)
		}
	}})
	assert.Equal(t, Inconclusive, res.Verdict, "%d requests: it goes on, on a slow machine: %s", n, res.Evidence)
}

// What a request took that nothing but the server could hold up excuses what is late.
func TestBystanderSeesWhatHoldsTheServerUp(t *testing.T) {
	t.Parallel()
	var slow atomic.Bool
	cfg := memory()
	cfg.Child = "never made"
	inner := cfg.OpenBackend
	cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
		b, err := inner(ctx)
		return slowAtTimes{b, &slow}, err
	}
	runs := 0
	res := one(t, cfg, &rule{run: func(e *env) {
		if runs++; runs > 1 {
			return
		}
		assert.Less(t, e.heldUp(anyRequest), time.Second)
		slow.Store(true)
		for e.heldUp(anyRequest) < time.Second {
			e.pause(10 * ms)
		}
		assert.Less(t, e.heldUp(thisProcess), time.Second)
		slow.Store(false)
		e.latef("", "too late")
	}})
	assert.Equal(t, Pass, res.Verdict, res.Evidence)
	assert.Equal(t, 2, runs)
}

type slowAtTimes struct {
	backend.Backend
	slow *atomic.Bool
}

func (s slowAtTimes) Clock() backend.Clock { return s.Backend.(backend.Clocked).Clock() }

func (s slowAtTimes) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	for s.slow.Load() && ctx.Err() == nil {
		time.Sleep(10 * ms)
	}
	return s.Backend.Try(ctx, req)
}
