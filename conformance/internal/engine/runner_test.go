package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	memlock "github.com/mortiselock/lock/memory"
)

// memory is a Config on a store of its own.
func memory() Config {
	store := memlock.NewStore(nil)
	return Config{
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return memlock.NewBackend(ctx, &memlock.Options{Store: store})
		},
		TTL: 300 * time.Millisecond, Budget: 5 * time.Second,
	}
}

// virtually runs f in a bubble, where waiting takes no time and nothing is late. What
// still waits there in the end is given time to end.
func virtually(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(t)
		time.Sleep(time.Hour)
	})
}

// judged runs made-up rules.
func judged(t *testing.T, cfg Config, rules ...*Rule) []Result {
	t.Helper()
	return judgedUntil(t.Context(), t, cfg, rules...)
}

// judgedUntil is judged, by a caller that may give up.
func judgedUntil(ctx context.Context, t *testing.T, cfg Config, rules ...*Rule) []Result {
	t.Helper()
	for _, r := range rules {
		if r.Name == "" {
			r.Name, r.Subject, r.Statement = "Made", "made", "A made-up rule."
		}
		if r.Limit == 0 {
			r.Limit = 30 * time.Second
		}
	}
	s, err := Prepare(t.Context(), cfg, rules)
	require.NoError(t, err)
	r := NewRunner(s)
	defer r.Close()
	var results []Result
	for _, x := range rules {
		results = append(results, r.Run(ctx, x, r.Queue()))
	}
	return results
}

func one(t *testing.T, cfg Config, r *Rule) Result {
	t.Helper()
	return judged(t, cfg, r)[0]
}

// TestAloneRunsWhenAllOthersHaveEnded also where others are repeated.
func TestAloneRunsWhenAllOthersHaveEnded(t *testing.T) {
	t.Parallel()
	virtually(t, func(t *testing.T) {
		var running, ran atomic.Int64
		other := func(e *Env) {
			running.Add(1)
			defer running.Add(-1)
			nth := ran.Add(1)
			e.Pause(time.Second)
			if nth <= 2 {
				e.TooSlowf("", "once more")
			}
		}
		var seen []int64
		alone := func(e *Env) { seen = append(seen, running.Load(), ran.Load()) }
		rules := []*Rule{{Name: "First", Run: other}, {Name: "Alone", Alone: true, Run: alone}, {Name: "Last", Run: other}, {Name: "AloneToo", Alone: true, Run: alone}}
		for _, r := range rules {
			r.Subject, r.Statement, r.Limit = "made", "A made-up rule.", 30*time.Second
		}
		s, err := Prepare(t.Context(), memory(), rules)
		require.NoError(t, err)
		r := NewRunner(s)
		defer r.Close()
		var all sync.WaitGroup
		for _, x := range rules {
			turn := r.Queue()
			all.Go(func() { assert.Equal(t, Pass, r.Run(t.Context(), x, turn).Verdict, x.Name) })
		}
		all.Wait()
		assert.Equal(t, []int64{0, 4, 0, 4}, seen, "running and begun when those ran that are alone")
	})
}

// TestServerIsAwayForAMoment: a client is opened again, and what lasts is a failure.
func TestServerIsAwayForAMoment(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err     error
		away    time.Duration
		verdict Verdict
	}{
		"a moment":        {backend.ErrUnavailable, 3 * time.Second, Pass},
		"for good":        {backend.ErrUnavailable, time.Hour, Fail},
		"not unavailable": {backend.ErrPermanent, 3 * time.Second, Fail},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			virtually(t, func(t *testing.T) {
				var until atomic.Pointer[time.Time]
				cfg := memory()
				open := cfg.OpenBackend
				cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
					if at := until.Load(); at != nil && time.Now().Before(*at) {
						return nil, c.err
					}
					return open(ctx)
				}
				res := one(t, cfg, &Rule{Run: func(e *Env) {
					back := time.Now().Add(c.away)
					until.Store(&back)
					e.Locker()
				}})
				assert.Equal(t, c.verdict, res.Verdict, res.Evidence)
			})
		})
	}
}

func TestEvidenceShowsTheHistory(t *testing.T) {
	t.Parallel()
	res := one(t, memory(), &Rule{Run: func(e *Env) {
		a, b := e.Locker(), e.Locker()
		h := a.MustTry(e.Key("noise"))
		h.MustRelease()
		key := e.Key("a")
		a.MustTry(key)
		_, err := b.Try(key)
		e.Failf(key, "expected this, saw %s", Outcome(err))
	}})
	assert.Equal(t, Fail, res.Verdict)
	for _, part := range []string{"expected this, saw error", "matches ErrHeld", "client 1", "client 2", "TryAcquire: granted, token", "deadline"} {
		assert.Contains(t, res.Evidence, part)
	}
	assert.NotContains(t, res.Evidence, "noise", "calls on other keys are left out")
}

func TestHangingCaseIsGivenUp(t *testing.T) {
	t.Parallel()
	virtually(t, hangingCaseIsGivenUp)
}

func hangingCaseIsGivenUp(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	results := judged(t, memory(),
		&Rule{Limit: 100 * time.Millisecond, Run: func(e *Env) {
			c := e.Locker()
			c.Locker = stuck{c.Locker, release}
			_, _ = c.Try(e.Key("stuck"))
		}},
		&Rule{Limit: 100 * time.Millisecond, Run: func(e *Env) {
			<-e.Ctx.Done() // obeys its context, and then fails for that reason
			e.Failf("", "a failure that only the end of the context made")
		}},
		&Rule{Run: func(*Env) {}})
	assert.Equal(t, Fail, results[0].Verdict)
	assert.Contains(t, results[0].Evidence, "did not end within its limit of 100ms")
	assert.Regexp(t, `client 1 in TryAcquire\(".*stuck"\) since`, results[0].Evidence)
	assert.Equal(t, Fail, results[1].Verdict)
	assert.NotContains(t, results[1].Evidence, "only the end of the context")
	assert.Equal(t, Pass, results[2].Verdict, "the run goes on")
}

// A case that is not over, though its calls return, says nothing about the lock.
func TestCaseOfManySlowCallsIsInconclusive(t *testing.T) {
	t.Parallel()
	virtually(t, func(t *testing.T) {
		res := one(t, memory(), &Rule{Limit: time.Minute, Run: func(e *Env) {
			c := e.Locker()
			for n := 0; ; n++ {
				h := c.MustTry(e.Key("%d", n))
				e.Pause(time.Second)
				h.MustRelease()
			}
		}})
		assert.Equal(t, Inconclusive, res.Verdict, res.Evidence)
		assert.Contains(t, res.Evidence, "in which calls were answered")
	})
}

// Nor is one of many who wait their turn at a lock with slow releases.
func TestCaseOfManySlowTurnsIsInconclusive(t *testing.T) {
	t.Parallel()
	virtually(t, func(t *testing.T) {
		res := one(t, memory(), &Rule{Limit: time.Minute, Run: func(e *Env) {
			e.Each(40, func(int) {
				h, err := e.Locker().Acquire(e.Ctx, e.Key("a"))
				if err != nil {
					e.Fatalf("", "%v", err)
				}
				e.Pause(2 * time.Second)
				h.MustRelease()
			})
		}})
		assert.Equal(t, Inconclusive, res.Verdict, res.Evidence)
	})
}

// A goroutine of a case may have a reason to end it while the others are not waited for.
// What a goroutine of a case opens when the case is over is closed.
func TestOpenedAfterTheCase(t *testing.T) {
	t.Parallel()
	cfg := memory()
	open, late, over, closed := cfg.OpenBackend, make(chan struct{}), make(chan struct{}), make(chan struct{})
	var begun atomic.Bool
	cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
		b, err := open(ctx)
		if !begun.CompareAndSwap(true, false) {
			return b, err
		}
		close(late)
		<-over
		return closingBackend{b, closed}, nil
	}
	one(t, cfg, &Rule{Run: func(e *Env) {
		begun.Store(true)
		e.Start(func() { e.Backend(); panic("the case is over") })
		<-late
		e.Skipf("it ends")
	}})
	close(over)
	<-closed
}

type closingBackend struct {
	backend.Backend
	closed chan struct{}
}

func (b closingBackend) Close() error {
	close(b.closed)
	return b.Backend.Close()
}

func TestReasonOfALateGoroutine(t *testing.T) {
	t.Parallel()
	res := one(t, memory(), &Rule{Run: func(e *Env) {
		e.Start(func() { e.Skipf("it lacks something") })
		e.Pause(time.Minute)
	}})
	assert.Equal(t, Skipped, res.Verdict, res.Evidence)
}

// A declared deviation hides no two holders at a time.
func TestDeviationHidesNoOverlap(t *testing.T) {
	t.Parallel()
	for overlap, want := range map[bool]Verdict{false: Deviation, true: Fail} {
		cfg := memory()
		cfg.Deviations = map[string]string{"Made": "it is made up"}
		res := one(t, cfg, &Rule{Run: func(e *Env) {
			key := e.Key("a")
			h := e.Locker().MustTry(key)
			if overlap {
				e.addRecord(&Record{Who: "nobody", Key: key, Granted: h.Granted, released: -1, Deadline: h.Deadline})
			}
			e.Failf(key, "it was broken")
		}})
		assert.Equal(t, want, res.Verdict, res.Evidence)
		assert.Contains(t, res.Evidence, "it was broken")
	}
}

// What a declared deviation does is not said to have been seen on a machine that was too
// slow for it.
func TestDeviationOnASlowMachine(t *testing.T) {
	t.Parallel()
	cfg := memory()
	cfg.Deviations = map[string]string{"Made": "it is made up"}
	res := one(t, cfg, &Rule{Run: func(e *Env) { e.TooSlowf("", "it was slow") }})
	assert.Equal(t, Deviation, res.Verdict)
	assert.Contains(t, res.Evidence, "it is made up\ninconclusive when it was tried: ")
	assert.Contains(t, res.Evidence, "it was slow")
}

// Once a rule has failed for sure, the rest is not worth long waits: what hangs is given up
// sooner, and what is inconclusive has one more try only.
func TestRedRunIsShort(t *testing.T) {
	t.Parallel()
	virtually(t, redRunIsShort)
}

func redRunIsShort(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	hangs := func(e *Env) {
		c := e.Locker()
		c.Locker = stuck{c.Locker, release}
		_, _ = c.Try(e.Key("stuck"))
	}
	runs := 0
	undecided := func(e *Env) {
		runs++
		e.Pause(ms)
		e.standStill(time.Minute)
		e.Latef("", "too late")
	}
	cfg := memory()
	results := judged(t, cfg,
		&Rule{Limit: time.Minute, Run: hangs},
		&Rule{Limit: time.Minute, Run: hangs},
		&Rule{Run: undecided},
		&Rule{Limit: time.Minute, Run: func(e *Env) {
			key := e.Key("a")
			for range 30 { // it goes on
				e.Locker().MustTry(key).MustRelease()
				e.Pause(time.Second)
			}
		}},
		&Rule{Limit: time.Minute, Run: func(e *Env) { e.Failf("", "it was broken"); hangs(e) }})
	assert.Equal(t, Fail, results[0].Verdict)
	assert.InDelta(t, 60, results[0].Seconds, 5, "it may be slow")
	assert.Equal(t, Inconclusive, results[1].Verdict, "it might have ended: %s", results[1].Evidence)
	assert.InDelta(t, (stuckWhenRed + 5*cfg.TTL).Seconds(), results[1].Seconds, 5, "it is not tried again")
	assert.Equal(t, Inconclusive, results[2].Verdict)
	assert.Equal(t, fewAttempts, runs)
	assert.Equal(t, Pass, results[3].Verdict, "what goes on is not given up: %s", results[3].Evidence)
	assert.Equal(t, Fail, results[4].Verdict, "what was seen before counts")
}

type stuck struct {
	lock.Locker
	release chan struct{}
}

func (s stuck) TryAcquire(context.Context, string, ...lock.Option) (lock.Lease, error) {
	<-s.release
	return nil, errors.New("stuck")
}

func TestPanicsAndGoexitAreFailures(t *testing.T) {
	t.Parallel()
	results := judged(t, memory(),
		&Rule{Run: func(*Env) { panic("the lock under test broke") }},
		&Rule{Run: func(e *Env) {
			e.Each(3, func(i int) {
				if i == 1 {
					panic(fmt.Errorf("goroutine %d broke", i))
				}
				<-e.Ctx.Done()
				panic(Abort{})
			})
		}, Limit: 200 * time.Millisecond},
		&Rule{Run: func(*Env) { runtime.Goexit() }},
	)
	for i, text := range []string{"the lock under test broke", "goroutine 1 broke", "runtime.Goexit"} {
		assert.Equal(t, Fail, results[i].Verdict)
		assert.Contains(t, results[i].Evidence, text)
	}
	assert.Contains(t, results[0].Evidence, "runner_test.go", "with the stack")
}

func TestClaimsAreHeldBothWays(t *testing.T) {
	t.Parallel()
	made := Claim{"something", func(*Settings) bool { return true }}
	missing := Claim{"something else", func(*Settings) bool { return false }}
	works := func(*Env) {}
	fails := func(e *Env) { e.Failf("", "it does not work") }
	skips := func(e *Env) { e.Skipf("there is nothing to test with") }
	for _, c := range []struct {
		rule *Rule
		want Verdict
		text string
	}{
		{&Rule{Claims: []Claim{made}, Run: works}, Pass, ""},
		{&Rule{Claims: []Claim{made}, Run: fails}, Fail, "it does not work"},
		{&Rule{Claims: []Claim{made}, Run: skips}, Skipped, "nothing to test with"},
		{&Rule{Claims: []Claim{made, missing}, Run: works}, Unclaimed, ""},
		{&Rule{Claims: []Claim{missing}, Run: fails}, NotClaimed, "don't claim something else; seen when it was tried"},
		{&Rule{Claims: []Claim{missing}, Run: skips}, NotClaimed, "not tried: there is nothing"},
		{&Rule{Run: fails}, Fail, "it does not work"},
	} {
		res := one(t, memory(), c.rule)
		assert.Equal(t, c.want, res.Verdict)
		assert.Contains(t, res.Evidence, c.text)
	}
}

func TestEveryCaseChecksExclusion(t *testing.T) {
	t.Parallel()
	res := one(t, memory(), &Rule{Run: func(e *Env) {
		key := e.Key("a")
		for range 2 {
			c := e.LockerFrom(func(context.Context) (lock.Locker, error) {
				return memlock.New(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)}) // not shared
			})
			c.MustTry(key)
		}
	}})
	assert.Equal(t, Fail, res.Verdict)
	assert.Contains(t, res.Evidence, "valid at the same time: client 1 was granted it at")
}

func TestTTLFitsTheGuarantees(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		g    backend.Guarantees
		ttl  time.Duration
		long time.Duration
	}{
		{backend.Guarantees{}, time.Second, 30 * time.Second},
		{backend.Guarantees{MinTTL: 2 * time.Second, TTLGrain: time.Second}, 2 * time.Second, 30 * time.Second},
		{backend.Guarantees{MinTTL: time.Millisecond, TTLGrain: 700 * time.Millisecond}, 1400 * time.Millisecond, 29400 * time.Millisecond},
		{backend.Guarantees{MinTTL: 4 * time.Second, MaxTTL: 4 * time.Second}, 4 * time.Second, 4 * time.Second},
		{backend.Guarantees{MinTTL: 4 * time.Second, MaxTTL: 20 * time.Second}, 4 * time.Second, 20 * time.Second},
	} {
		s := Settings{Claimed: c.g}
		require.NoError(t, s.chooseTTL())
		assert.Equal(t, c.ttl, s.TTL)
		assert.Equal(t, c.long, s.Long)
		assert.Equal(t, c.g.MaxTTL == 4*time.Second, s.Fixed)
	}
}

// A caller that gives up learns nothing of the cases under way, but for what they had
// seen for certain by then.
func TestCancelledCaseIsNotBroken(t *testing.T) {
	t.Parallel()
	gone := errors.New("the caller has gone")
	for name, c := range map[string]struct {
		run  func(e *Env, giveUp func())
		want Verdict
	}{
		"failed afterwards": {func(e *Env, giveUp func()) {
			giveUp()
			e.Failf("", "Acquire returned context canceled")
		}, Skipped},
		"ended by a failure afterwards": {func(e *Env, giveUp func()) {
			a := e.Locker()
			giveUp()
			a.MustTry(e.Key("a"))
		}, Skipped},
		"waiting for what does not come": {func(e *Env, giveUp func()) {
			giveUp()
			e.Within(time.Hour, make(chan struct{}))
		}, Skipped},
		"beyond its limit": {func(e *Env, giveUp func()) {
			giveUp()
			time.Sleep(500 * ms) // the limit is 100 ms
		}, Skipped},
		"ended without a failure": {func(_ *Env, giveUp func()) { giveUp() }, Skipped},
		"failed before": {func(e *Env, giveUp func()) {
			e.Failf("", "seen while all was well")
			giveUp()
			e.Failf("", "Acquire returned context canceled")
		}, Fail},
		"late before, while the machine stood still": {func(e *Env, giveUp func()) {
			e.Latef("", "late")
			e.Log.longest = 10 * time.Second
			giveUp()
		}, Skipped},
		"proved": {func(e *Env, giveUp func()) {
			giveUp()
			e.ProofAt(-1, "", "two leases were valid at the same time")
		}, Fail},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			made := &Rule{Run: func(e *Env) { c.run(e, func() { cancel(gone) }) }}
			if name == "beyond its limit" {
				made.Limit = 100 * ms
			}
			res := judgedUntil(ctx, t, memory(), made)[0]
			assert.Equal(t, c.want, res.Verdict, res.Evidence)
			assert.NotContains(t, res.Evidence, "context canceled")
			if c.want == Skipped {
				assert.Contains(t, res.Evidence, gone.Error())
			}
		})
	}
}

// A case that begins while the process hardly runs cannot be judged; one that never could is
// begun all the same.
func TestCasesBeginWhenTheProcessRuns(t *testing.T) {
	t.Parallel()
	stood := func(r *Runner, until time.Duration) {
		r.s.stalls.mu.Lock()
		defer r.s.stalls.mu.Unlock()
		r.s.stalls.stood = append(r.s.stalls.stood, stall{time.Now().Add(until), breathing})
	}
	virtually(t, func(t *testing.T) {
		s, err := Prepare(t.Context(), memory(), nil)
		require.NoError(t, err)
		r := NewRunner(s)
		defer r.Close()
		begun := time.Now()
		r.breathe(t.Context())
		assert.Zero(t, time.Since(begun))
		stood(r, 0)
		r.breathe(t.Context())
		assert.Greater(t, time.Since(begun), breathing/2)
		stood(r, time.Hour)
		begun = time.Now()
		r.breathe(t.Context())
		assert.GreaterOrEqual(t, time.Since(begun), longestRest)
	})
}
