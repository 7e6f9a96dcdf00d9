package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
	memlock "github.com/mortiselock/lock/memory"
)

// standStill has the machine stand still, as far as the case can tell.
func (e *Env) standStill(d time.Duration) {
	e.stalls.mu.Lock()
	defer e.stalls.mu.Unlock()
	e.stalls.stalls = append(e.stalls.stalls, stall{time.Now(), d})
}

// A lease without an option would be too short for the control timers of a repeat.
func TestLockersOfARepeatHaveItsTTL(t *testing.T) {
	t.Parallel()
	var ttls, left []time.Duration
	res := one(t, memory(), &Rule{Run: func(e *Env) {
		c := e.Locker()
		h, err := c.Get("TryAcquire", c.Locker.TryAcquire, e.Ctx, e.Key("a"), nil)
		if err != nil {
			e.Fatalf("", "%v", err)
		}
		ttls, left = append(ttls, e.TTL), append(left, h.Until().Sub(e.Log.Base))
		if len(ttls) == 1 {
			e.standStill(200 * ms)
			e.Latef("", "too late")
		}
	}})
	assert.Equal(t, Pass, res.Verdict, res.Evidence)
	require.Len(t, ttls, 2)
	for i, ttl := range ttls {
		assert.Greater(t, left[i], ttl/2, "attempt %d, TTL %s", i+1, ttl)
	}
}

func TestLateIsInconclusiveWhereSomethingWasHeldUp(t *testing.T) {
	t.Parallel()
	var ttls []time.Duration
	res := one(t, memory(), &Rule{Run: func(e *Env) {
		if ttls = append(ttls, e.TTL); len(ttls) == 1 {
			e.standStill(200 * ms)
			e.Latef("", "too late")
		}
	}})
	assert.Equal(t, Pass, res.Verdict, res.Evidence)
	require.Len(t, ttls, 2)
	assert.GreaterOrEqual(t, ttls[1], delaysPerTTL*200*ms, "what held it up is a small part of the next TTL")

	runs := 0
	res = one(t, memory(), &Rule{Run: func(e *Env) {
		runs++
		e.standStill(time.Minute)
		e.Latef("", "too late")
	}})
	assert.Equal(t, Inconclusive, res.Verdict, "neither kept nor broken")
	assert.Equal(t, mostAttempts, runs)
	assert.Contains(t, res.Evidence, "held up for 1m0s")
	assert.Contains(t, res.Evidence, "too late")

	runs = 0
	cfg := memory()
	cfg.Repeat = func(r Result) bool {
		assert.Equal(t, Result{Rule: "Made", Subject: "made", Statement: "A made-up rule.", Verdict: Inconclusive, Evidence: r.Evidence}, r)
		return runs < 2
	}
	res = one(t, cfg, &Rule{Run: func(e *Env) {
		runs++
		e.standStill(time.Minute)
		e.Latef("", "too late")
	}})
	assert.Equal(t, Inconclusive, res.Verdict)
	assert.Equal(t, 2, runs, "no more often than the Config wants")

	runs = 0
	res = one(t, memory(), &Rule{Run: func(e *Env) {
		runs++
		e.standStill(time.Minute)
		e.Failf("", "wrong, whenever it comes")
	}})
	assert.Equal(t, Fail, res.Verdict)
	assert.Equal(t, 1, runs)
	assert.Contains(t, res.Evidence, "held up for up to 1m0s")

	runs = 0
	res = one(t, memory(), &Rule{Run: func(e *Env) {
		runs++
		e.standStill(time.Minute)
		e.Latef(e.Key("a"), "too late")
		e.Failf(e.Key("b"), "wrong, whenever it comes")
	}})
	assert.Equal(t, Fail, res.Verdict, "what is late elsewhere excuses nothing")
	assert.Equal(t, 1, runs)
}

// An expectation that a hold is there rests on its own time.
func TestHoldsAreJudgedByTheirOwnTime(t *testing.T) {
	t.Parallel()
	breaks := func(e *Env, h Grip) { e.Failf(h.(*Grant).Key, "somebody else was granted it") }
	grant := func(e *Env, ttl time.Duration) *Grant {
		return e.Backend().MustTry(e.Request(e.Key("a"), "", ttl))
	}
	for name, c := range map[string]struct {
		run  func(e *Env)
		want Verdict
	}{
		"it is there":        {func(e *Env) { breaks(e, grant(e, e.Long)) }, Fail},
		"it has run out":     {func(e *Env) { h := grant(e, e.TTL); e.Pause(e.TTL); breaks(e, h) }, Inconclusive},
		"it was left to":     {func(e *Env) { h := grant(e, e.TTL); e.Expire(h); breaks(e, h) }, Fail},
		"it was released":    {func(e *Env) { h := grant(e, e.TTL); _ = h.Release(e.Ctx); e.Pause(e.TTL); breaks(e, h) }, Fail},
		"another one's time": {func(e *Env) { grant(e, e.TTL); e.Pause(e.TTL); e.Failf(e.Key("b"), "wrong") }, Fail},
		"the last renewal": {func(e *Env) {
			h := grant(e, e.TTL)
			e.Pause(e.TTL / 2)
			_ = h.Renew()
			e.Pause(e.TTL * 6 / 10)
			breaks(e, h)
		}, Fail},
		"its release came too late": {func(e *Env) {
			h := grant(e, e.TTL)
			e.Pause(e.TTL + e.TakeoverLimit(0))
			_ = h.Release(e.Ctx)
			breaks(e, h)
		}, Inconclusive},
		"its release failed in time": {func(e *Env) {
			h := grant(e, e.Long)
			_ = h.EndedBy(e, func() error { return h.Client.Release(e.Ctx, Stranger(h.Hold)) })
			breaks(e, h)
		}, Fail},
		"its release unheard": {func(e *Env) {
			h := e.Locker().MustTry(e.Key("a"))
			h.MustRelease()
			h.unheard(leastTimeout, fmt.Errorf("%w: i/o timeout", backend.ErrOutcomeUnknown))
			e.Failf(h.Key, "it is still held")
		}, Inconclusive},
		"its release by a backend unheard": {func(e *Env) {
			h := grant(e, e.Long)
			h.Client.Backend = losesReleases{h.Client.Backend}
			_ = h.Release(e.Ctx)
			e.Failf(h.Key, "it is still held")
		}, Inconclusive},
		"before it was judged": {func(e *Env) { e.TooSlowf("", "the machine stood still") }, Inconclusive},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			virtually(t, func(t *testing.T) {
				cfg := memory()
				cfg.TTL = time.Second
				cfg.Repeat = func(Result) bool { return false }
				res := one(t, cfg, &Rule{Run: c.run})
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

// dying is a server that answers no renewal.
type dying struct{ backend.Backend }

func (d dying) Renew(ctx context.Context, _ backend.Hold) (backend.Validity, error) {
	<-ctx.Done()
	return backend.Validity{}, fmt.Errorf("%w: %w", backend.ErrUnavailable, ctx.Err())
}

// Renewals that hang prove nothing while the TTL is short: the machine may be slow. They do
// with a long one.
func TestHangingRenewalsAreTriedWithALongTTL(t *testing.T) {
	t.Parallel()
	virtually(t, func(t *testing.T) {
		cfg := memory()
		cfg.TTL = time.Second
		cfg.Repeat = nil
		healthy := cfg.OpenBackend
		cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
			b, err := healthy(ctx)
			return dying{b}, err
		}
		var tried []time.Duration
		res := one(t, cfg, &Rule{Run: func(e *Env) {
			tried = append(tried, e.TTL)
			c, _ := e.Watched()
			h := c.MustTryFor(e.Key("a"), e.TTL)
			e.Within(time.Hour, h.Lease.Context().Done())
			h.MustLive("it is renewed")
		}})
		assert.Equal(t, Fail, res.Verdict, res.Evidence)
		assert.Equal(t, []time.Duration{time.Second, longestRepeat}, []time.Duration{tried[0], tried[len(tried)-1]})
	})
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
		for _, via := range []FaultSite{Primitives, Whole} {
			t.Run(name+", "+via.Name, func(t *testing.T) {
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
					res := one(t, cfg, &Rule{Run: func(e *Env) {
						a, f := e.FaultyAt(via, nil)
						h := a.MustTryFor(e.Key("a"), e.TTL)
						f.All(c.fault, OpsToKeep...)
						e.Within(10*time.Second, h.Lease.Context().Done())
						h.MustLive("it is renewed")
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
				res := one(t, cfg, &Rule{Run: func(e *Env) {
					a, key := e.Locker(), e.Key("a")
					a.MustTry(key)
					waits := &Client{Env: e, Who: "client 2", Locker: unanswered{a.Locker}, closed: -1}
					_, _ = waits.GivesUp(key, true, new(Lateness))
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
	ask := &Rule{Run: func(e *Env) {
		s := e.Backend()
		e.Each(20, func(i int) { s.MustTry(e.Request(e.Key("%d", i), "", e.Long)) })
	}}
	var ttl time.Duration
	look := &Rule{Run: func(e *Env) { ttl = e.TTL }}
	results := judged(t, cfg, ask, look)
	assert.NotEqual(t, Fail, results[0].Verdict)
	assert.NotEqual(t, Fail, results[1].Verdict)
	assert.GreaterOrEqual(t, ttl, requestsPerTTL*100*ms)

	s := Settings{TTL: time.Second}
	assert.Equal(t, time.Second, s.nextTTL(0, 0))
	assert.Equal(t, 2*time.Second, s.nextTTL(time.Second, 0))
	assert.Equal(t, 6*time.Second, s.nextTTL(time.Second, 200*ms))
	assert.Equal(t, longestRepeat, s.nextTTL(time.Second, time.Hour))
	short := &Rule{Limit: 40 * time.Second, LimitTTLs: 20}
	still, most := s.limits(short, time.Second)
	assert.Equal(t, time.Minute, still)
	assert.Equal(t, time.Minute, most)
	for range 64 {
		s.pace.add(100 * ms)
	}
	still, most = s.limits(short, time.Second)
	assert.Equal(t, 3*time.Minute, still)
	assert.Equal(t, 20*time.Minute, most)
	s.Claimed.MaxTTL, s.Claimed.MinTTL, s.Fixed = time.Second, time.Second, true
	assert.Equal(t, time.Second, s.nextTTL(time.Second, time.Hour), "no other can be had")
}

// A rule of a Locker's own TTL is repeated with what requests take by then: no other TTL can be had,
// and the one that the slow requests asked for would never do.
func TestDefaultTTLIsTriedAgainWhenRequestsAreFast(t *testing.T) {
	t.Parallel()
	virtually(t, defaultTTLIsTriedAgain)
}

func defaultTTLIsTriedAgain(t *testing.T) {
	store := memlock.NewStore(nil)
	cfg := memory()
	cfg.OpenBackend = nil
	cfg.Open = func(ctx context.Context) (lock.Locker, error) {
		return memlock.New(ctx, &memlock.Options{Store: store, Lock: lock.Options{TTL: cfg.TTL}})
	}
	take := func(e *Env, d time.Duration) {
		for range len(e.pace.last) {
			e.pace.add(d)
		}
	}
	slow := &Rule{Run: func(e *Env) { take(e, time.Second) }}
	var ttls []time.Duration
	rule := &Rule{AtDefault: true, Run: func(e *Env) {
		if ttls = append(ttls, e.TTL); e.TTL > e.Settings.TTL {
			take(e, ms)
			e.TooSlowf("", "the default is shorter than %s", e.TTL)
		}
	}}
	results := judged(t, cfg, slow, rule)
	assert.Equal(t, Pass, results[1].Verdict, results[1].Evidence)
	require.Len(t, ttls, 2)
	assert.Greater(t, ttls[0], cfg.TTL)
	assert.Equal(t, cfg.TTL, ttls[1])
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
	virtually(t, noAnswerIsInconclusive)
}

func noAnswerIsInconclusive(t *testing.T) {
	for after, want := range map[time.Duration]Verdict{0: Fail, 2 * leastTimeout: Inconclusive} {
		cfg := memory()
		healthy := cfg.OpenBackend
		cfg.Repeat = func(Result) bool { return false }
		cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
			b, err := healthy(ctx)
			return unheard{b, after}, err
		}
		cfg.TTL = 10 * time.Second
		res := one(t, cfg, &Rule{Run: func(e *Env) { e.Backend().MustTry(e.Request(e.Key("a"), "", e.Long)) }})
		assert.Equal(t, want, res.Verdict, res.Evidence)
	}
}

// rarely is a backend that fails one of twenty requests for a key.
type rarely struct {
	backend.Backend
	n *atomic.Int64
}

func (r rarely) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if r.n.Add(1)%20 == 0 {
		return backend.Grant{}, fmt.Errorf("%w: connection reset", backend.ErrUnavailable)
	}
	return r.Backend.Try(ctx, req)
}

func TestServerThatFailsNowAndThenIsInconclusive(t *testing.T) {
	t.Parallel()
	for want, run := range map[Verdict]func(*Env){
		Inconclusive: func(e *Env) { e.Failf("", "wrong") },
		Fail:         func(e *Env) { e.ProofAt(0, "", "wrong") },
		Pass:         func(*Env) {},
	} {
		cfg := memory()
		healthy := cfg.OpenBackend
		cfg.Repeat = func(Result) bool { return false }
		var n atomic.Int64
		cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
			b, err := healthy(ctx)
			return rarely{b, &n}, err
		}
		res := one(t, cfg, &Rule{Run: run})
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
	res := one(t, memory(), &Rule{Limit: 2 * time.Second, Run: func(e *Env) {
		e.standStill(50 * ms)
		c := e.Locker()
		c.Locker = stuck{c.Locker, release}
		_, _ = c.Try(e.Key("stuck"))
	}})
	assert.Equal(t, Fail, res.Verdict, "whatever the machine does")

	n := 0
	cfg := memory()
	cfg.Repeat = func(Result) bool { return false }
	res = one(t, cfg, &Rule{Limit: 500 * ms, Run: func(e *Env) {
		s := e.Backend()
		for {
			n++
			_ = s.MustTry(e.Request(e.Key("%d", n), "", e.Long)).Release(e.Ctx)
			e.standStill(time.Second)
			e.Pause(ms)
		}
	}})
	assert.Equal(t, Inconclusive, res.Verdict, "%d requests: it goes on, on a slow machine: %s", n, res.Evidence)
}

// A wake-up is several requests. One that was held up by a third of what they may take
// together makes them late by a little, and not by much.
func TestLateWake(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		heldUp   float64 // as a part of what it may take
		over     time.Duration
		requests int
		want     Verdict
	}{
		"a little late, and held up":              {0.4, 4 * ms, 3, Pass},
		"a little late, and nothing held it up":   {0.2, 4 * ms, 3, Fail},
		"of more requests":                        {0.2, 4 * ms, 6, Pass},
		"much later than what it was held up for": {0.4, time.Second, 3, Fail},
	} {
		t.Run(name, func(t *testing.T) {
			runs := 0
			res := one(t, memory(), &Rule{Run: func(e *Env) {
				if runs++; runs > 1 {
					return
				}
				e.standStill(time.Duration(c.heldUp * float64(e.Prompt())))
				e.Fail(e.LateWake(e.Prompt()+c.over, e.Prompt(), c.requests), "", "too late")
			}})
			assert.Equal(t, c.want, res.Verdict, res.Evidence)
		})
	}
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
	res := one(t, cfg, &Rule{Run: func(e *Env) {
		if runs++; runs > 1 {
			return
		}
		assert.Less(t, e.heldUp(AnyRequest), time.Second)
		slow.Store(true)
		for e.heldUp(AnyRequest) < time.Second {
			e.Pause(10 * ms)
		}
		assert.Less(t, e.heldUp(ThisProcess), time.Second)
		slow.Store(false)
		e.Latef("", "too late")
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

// deaf does not answer a try until the caller has given it up.
type deaf struct {
	backend.Backend
	is *atomic.Bool
}

func (d deaf) Try(ctx context.Context, r backend.Request) (backend.Grant, error) {
	if d.is.Load() {
		<-ctx.Done()
		return backend.Grant{}, ctx.Err()
	}
	return d.Backend.Try(ctx, r)
}

// The server that does not answer is to blame also where a fault delays the answer besides.
func TestNoAnswerBeneathAFaultIsInconclusive(t *testing.T) {
	t.Parallel()
	virtually(t, func(t *testing.T) {
		cfg := memory()
		open, is := cfg.OpenBackend, new(atomic.Bool)
		cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
			b, err := open(ctx)
			return deaf{b, is}, err
		}
		cfg.TTL = time.Second
		runs := 0
		res := one(t, cfg, &Rule{Run: func(e *Env) {
			is.Store(runs == 0)
			runs++
			a, f := e.Faulty()
			f.All(faultlock.DelayAfter(e.TTL/5), faultlock.OpTry)
			a.MustTry(e.Key("a")).MustRelease()
		}})
		assert.Equal(t, Pass, res.Verdict, res.Evidence)
		assert.Equal(t, 2, runs)
	})
}

// A short TTL that a case tries by itself is as short beside a long one.
func TestALeaseIsJudgedByItsOwnTTL(t *testing.T) {
	t.Parallel()
	late := func(ttl time.Duration) Verdict {
		cfg := memory()
		cfg.TTL = 20 * time.Second
		return one(t, cfg, &Rule{Run: func(e *Env) {
			e.standStill(400 * ms)
			e.Fail(TimelyFor(ttl), "", "too late")
		}}).Verdict
	}
	assert.Equal(t, Inconclusive, late(2*time.Second))
	assert.Equal(t, Fail, late(20*time.Second))
}

// What takes several steps waits for its turn before each: none of the waits is long.
func TestLatenessIsWithoutTheTimeThatTheProcessStoodStill(t *testing.T) {
	t.Parallel()
	late := func(gap time.Duration) Verdict {
		return one(t, memory(), &Rule{Run: func(e *Env) {
			var l Lateness
			e.stalls.mu.Lock()
			for i := range time.Duration(5) {
				e.stalls.stood = append(e.stalls.stood, stall{time.Now().Add((i - 5) * 80 * ms), gap})
			}
			e.stalls.mu.Unlock()
			l.Add(e, 410*ms)
			l.Judge(e, "", 250*ms, "it came")
		}}).Verdict
	}
	assert.Equal(t, Pass, late(60*ms))
	assert.Equal(t, Fail, late(10*ms))
}

// A few samples may all be late by what held one of them up; many are not.
func TestFewLateSamplesNeedAQuickServer(t *testing.T) {
	t.Parallel()
	late := func(samples int, heldUp time.Duration) Verdict {
		cfg := memory()
		cfg.TTL = time.Second
		return one(t, cfg, &Rule{Run: func(e *Env) {
			var l Lateness
			for range samples {
				l.Add(e, 731*ms)
			}
			e.standStill(heldUp)
			l.Judge(e, "", 583*ms, "it came")
		}}).Verdict
	}
	assert.Equal(t, Inconclusive, late(2, 167*ms))
	assert.Equal(t, Fail, late(2, 20*ms))
	assert.Equal(t, Fail, late(many, 167*ms))
}

func TestOverdueIsInconclusiveWhereTheProcessHardlyRan(t *testing.T) {
	t.Parallel()
	overdue := func(gap time.Duration) Verdict {
		return one(t, memory(), &Rule{Run: func(e *Env) {
			slack := e.Slack()
			e.stalls.mu.Lock()
			for left := slack; left > 0; left -= 100 * ms {
				e.stalls.stood = append(e.stalls.stood, stall{time.Now().Add(-left), gap})
			}
			e.stalls.mu.Unlock()
			e.Overduef("", "it has not come")
		}}).Verdict
	}
	assert.Equal(t, Inconclusive, overdue(60*ms))
	assert.Equal(t, Fail, overdue(20*ms))
}

// An operator's request has time limits too, which don't grow with the TTL.
func TestRemovalWithoutAnAnswerIsInconclusive(t *testing.T) {
	t.Parallel()
	removal := func(err error) Verdict {
		cfg := memory()
		cfg.TTL = 20 * time.Second
		cfg.Remove = func(context.Context, string) error { return err }
		return one(t, cfg, &Rule{Run: func(e *Env) {
			e.standStill(400 * ms)
			e.RemoveByForce(e.Key("a"))
		}}).Verdict
	}
	assert.Equal(t, Inconclusive, removal(context.DeadlineExceeded))
	assert.Equal(t, Fail, removal(lock.ErrPermanent))
}

// losesReleases answers a release with an error of its connection.
type losesReleases struct{ backend.Backend }

func (losesReleases) Release(context.Context, backend.Hold) error {
	time.Sleep(leastTimeout)
	return errors.New("write: i/o timeout")
}
