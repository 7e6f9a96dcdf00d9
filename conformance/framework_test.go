package conformance

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	memlock "github.com/mortiselock/lock/backend/memory"
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

// judged runs made-up rules.
func judged(t *testing.T, cfg Config, rules ...*rule) []Result {
	t.Helper()
	return judgedUntil(t.Context(), t, cfg, rules...)
}

// judgedUntil is judged, by a caller that may give up.
func judgedUntil(ctx context.Context, t *testing.T, cfg Config, rules ...*rule) []Result {
	t.Helper()
	for _, r := range rules {
		if r.Name == "" {
			r.Name, r.Subject, r.Statement = "Made", "made", "A made-up rule."
		}
		if r.Limit == 0 {
			r.Limit = 30 * time.Second
		}
	}
	s, err := prepare(t.Context(), cfg, rules)
	require.NoError(t, err)
	r := newRunner(s)
	defer r.close()
	var results []Result
	for _, x := range rules {
		results = append(results, r.run(ctx, x, r.queue()))
	}
	return results
}

func one(t *testing.T, cfg Config, r *rule) Result {
	t.Helper()
	return judged(t, cfg, r)[0]
}

func TestEvidenceShowsTheHistory(t *testing.T) {
	t.Parallel()
	res := one(t, memory(), &rule{run: func(e *env) {
		a, b := e.locker(), e.locker()
		h := a.mustTry(e.key("noise"))
		h.mustRelease()
		key := e.key("a")
		a.mustTry(key)
		_, err := b.try(key)
		e.failf(key, "expected this, saw %s", outcome(err))
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
		&rule{Limit: 100 * time.Millisecond, run: func(e *env) {
			c := e.locker()
			c.l = stuck{c.l, release}
			_, _ = c.try(e.key("stuck"))
		}},
		&rule{Limit: 100 * time.Millisecond, run: func(e *env) {
			<-e.ctx.Done() // obeys its context, and then fails for that reason
			e.failf("", "a failure that only the end of the context made")
		}},
		&rule{run: func(*env) {}})
	assert.Equal(t, Fail, results[0].Verdict)
	assert.Contains(t, results[0].Evidence, "did not end within its limit of 100ms")
	assert.Regexp(t, `client 1 in TryAcquire\(".*stuck"\) since`, results[0].Evidence)
	assert.Equal(t, Fail, results[1].Verdict)
	assert.NotContains(t, results[1].Evidence, "only the end of the context")
	assert.Equal(t, Pass, results[2].Verdict, "the run goes on")
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
		&rule{run: func(*env) { panic("the lock under test broke") }},
		&rule{run: func(e *env) {
			e.each(3, func(i int) {
				if i == 1 {
					panic(fmt.Errorf("goroutine %d broke", i))
				}
				<-e.ctx.Done()
				panic(abort{})
			})
		}, Limit: 200 * time.Millisecond},
		&rule{run: func(*env) { runtime.Goexit() }},
	)
	for i, text := range []string{"the lock under test broke", "goroutine 1 broke", "runtime.Goexit"} {
		assert.Equal(t, Fail, results[i].Verdict)
		assert.Contains(t, results[i].Evidence, text)
	}
	assert.Contains(t, results[0].Evidence, "framework_test.go", "with the stack")
}

func TestClaimsAreHeldBothWays(t *testing.T) {
	t.Parallel()
	made := claim{"something", func(*settings) bool { return true }}
	missing := claim{"something else", func(*settings) bool { return false }}
	works := func(*env) {}
	fails := func(e *env) { e.failf("", "it does not work") }
	skips := func(e *env) { e.skipf("there is nothing to test with") }
	for _, c := range []struct {
		rule *rule
		want Verdict
		text string
	}{
		{&rule{claims: []claim{made}, run: works}, Pass, ""},
		{&rule{claims: []claim{made}, run: fails}, Fail, "it does not work"},
		{&rule{claims: []claim{made}, run: skips}, Skipped, "nothing to test with"},
		{&rule{claims: []claim{made, missing}, run: works}, Unclaimed, ""},
		{&rule{claims: []claim{missing}, run: fails}, NotClaimed, "don't claim something else; seen when it was tried"},
		{&rule{claims: []claim{missing}, run: skips}, NotClaimed, "not tried: there is nothing"},
		{&rule{run: fails}, Fail, "it does not work"},
	} {
		res := one(t, memory(), c.rule)
		assert.Equal(t, c.want, res.Verdict)
		assert.Contains(t, res.Evidence, c.text)
	}
}

func TestEveryCaseChecksExclusion(t *testing.T) {
	t.Parallel()
	res := one(t, memory(), &rule{run: func(e *env) {
		key := e.key("a")
		for range 2 {
			c := e.lockerFrom(func(context.Context) (lock.Locker, error) {
				return memlock.New(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)}) // not shared
			})
			c.mustTry(key)
		}
	}})
	assert.Equal(t, Fail, res.Verdict)
	assert.Contains(t, res.Evidence, "valid at the same time: client 1 was granted it at")
}

func TestBadConfigIsRefused(t *testing.T) {
	t.Parallel()
	broken := errors.New("connection refused")
	for want, change := range map[string]func(*Config){
		"needs Open or OpenBackend":      func(c *Config) { c.OpenBackend = nil },
		"must not be negative":           func(c *Config) { c.TTL = -1 },
		"neither a rule nor a subject":   func(c *Config) { c.Only = []string{"Exclusive", "Exlusive"} },
		"connection refused":             func(c *Config) { c.OpenBackend = func(context.Context) (backend.Backend, error) { return nil, broken } },
		"neither a backend nor an error": func(c *Config) { c.OpenBackend = func(context.Context) (backend.Backend, error) { return nil, nil } },
		"neither a Locker nor an error":  func(c *Config) { c.Open = func(context.Context) (lock.Locker, error) { return nil, nil } },
		"panicked: no":                   func(c *Config) { c.Open = func(context.Context) (lock.Locker, error) { panic("no") } },
		"does not fit the guarantees": func(c *Config) {
			c.Guarantees = &backend.Guarantees{MinTTL: time.Second}
			c.TTL = 500 * time.Millisecond
		},
		"too short to test with": func(c *Config) { c.TTL = time.Millisecond },
		"contradict":             func(c *Config) { c.Guarantees = &backend.Guarantees{MinTTL: time.Minute, MaxTTL: time.Second} },
		"at most 64":             func(c *Config) { c.KeyPrefix = strings.Repeat("x", 65) },
		"control character":      func(c *Config) { c.KeyPrefix = "a\n" },
		"Config.Kill is needed": func(c *Config) {
			c.Open = func(ctx context.Context) (lock.Locker, error) { return memlock.New(ctx, nil) }
			c.OpenBackend, c.Guarantees = nil, &backend.Guarantees{}
		},
	} {
		cfg := memory()
		change(&cfg)
		_, err := Check(t.Context(), cfg)
		assert.ErrorContains(t, err, want)
	}
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
		s := settings{g: c.g}
		require.NoError(t, s.chooseTTL())
		assert.Equal(t, c.ttl, s.ttl)
		assert.Equal(t, c.long, s.long)
		assert.Equal(t, c.g.MaxTTL == 4*time.Second, s.fixed)
	}
}

func TestCheckReports(t *testing.T) {
	t.Parallel()
	cfg := memory()
	cfg.Only = []string{"keys", "HandsOut", "PoolClean"}
	var progress []string
	cfg.Progress = func(r Result) { progress = append(progress, r.Rule) }
	rep, err := Check(t.Context(), cfg)
	require.NoError(t, err)
	assert.True(t, rep.OK(), rep)
	assert.Equal(t, "memory", rep.Name)
	assert.Len(t, progress, 6)
	assert.Equal(t, Counts{Pass: 5, Skipped: 1}, rep.Counts())
	assert.Equal(t, "HandsOut", rep.Results[0].Rule, "in the order of Rules")
	assert.Contains(t, rep.String(), "5 pass, 0 fail, 0 not claimed, 0 \"works, not claimed\", 0 inconclusive, 1 skipped")
	res, ok := rep.Result("PoolClean")
	assert.True(t, ok)
	assert.Contains(t, res.Evidence, "needs Config.Pool")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Check(ctx, cfg)
	assert.ErrorIs(t, err, context.Canceled)
	assert.False(t, Report{}.OK(), "nothing tested is not a pass")
	assert.False(t, Report{Results: []Result{{Verdict: Pass}, {Verdict: Inconclusive}}}.OK(), "neither kept nor broken")

	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	cfg.Progress = func(Result) { cancel() }
	rep, err = Check(ctx, cfg)
	require.NoError(t, err)
	assert.Equal(t, "the run was cancelled: context canceled", rep.Incomplete)
	assert.False(t, rep.OK(), "a run that was ended early is no pass")
	assert.True(t, strings.HasPrefix(rep.String(), "Incomplete: the run was cancelled"), rep.String())
}

// A caller that gives up learns nothing of the cases under way, but for what they had
// seen for certain by then.
func TestCancelledCaseIsNotBroken(t *testing.T) {
	t.Parallel()
	gone := errors.New("the caller has gone")
	for name, c := range map[string]struct {
		run  func(e *env, giveUp func())
		want Verdict
	}{
		"failed afterwards": {func(e *env, giveUp func()) {
			giveUp()
			e.failf("", "Acquire returned context canceled")
		}, Skipped},
		"ended by a failure afterwards": {func(e *env, giveUp func()) {
			a := e.locker()
			giveUp()
			a.mustTry(e.key("a"))
		}, Skipped},
		"waiting for what does not come": {func(e *env, giveUp func()) {
			giveUp()
			e.within(time.Hour, make(chan struct{}))
		}, Skipped},
		"beyond its limit": {func(e *env, giveUp func()) {
			giveUp()
			time.Sleep(500 * ms) // the limit is 100 ms
		}, Skipped},
		"ended without a failure": {func(_ *env, giveUp func()) { giveUp() }, Skipped},
		"failed before": {func(e *env, giveUp func()) {
			e.failf("", "seen while all was well")
			giveUp()
			e.failf("", "Acquire returned context canceled")
		}, Fail},
		"late before, while the machine stood still": {func(e *env, giveUp func()) {
			e.latef("", "late")
			e.hist.longest = 10 * time.Second
			giveUp()
		}, Skipped},
		"proved": {func(e *env, giveUp func()) {
			giveUp()
			e.proofAt(-1, "", "two leases were valid at the same time")
		}, Fail},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			made := &rule{run: func(e *env) { c.run(e, func() { cancel(gone) }) }}
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

// fakeT records what Run makes of the results.
type fakeT struct {
	mu    *sync.Mutex
	lines map[string]string
	name  string
	only  string
}

func (t *fakeT) Helper()             {}
func (t *fakeT) Logf(string, ...any) {}
func (t *fakeT) Errorf(f string, a ...any) {
	t.set("FAIL " + fmt.Sprintf(f, a...))
}
func (t *fakeT) Skipf(f string, a ...any) {
	t.set("SKIP " + fmt.Sprintf(f, a...))
	runtime.Goexit()
}
func (t *fakeT) set(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines[t.name] = line
}
func (t *fakeT) Run(name string, f func(*fakeT)) bool {
	if t.only != "" && t.only != name {
		return true
	}
	sub := &fakeT{mu: t.mu, lines: t.lines, name: name}
	sub.set("PASS")
	done := make(chan struct{})
	go func() { defer close(done); f(sub) }()
	<-done
	return true
}

func TestRunMakesSubtests(t *testing.T) {
	t.Parallel()
	virtually(t, runMakesSubtests)
}

func runMakesSubtests(t *testing.T) {
	cfg := memory()
	cfg.Only = []string{"HandsOut", "PoolClean", "KeysRefused", "FairOrder"}
	ft := &fakeT{mu: new(sync.Mutex), lines: map[string]string{}}
	Run(ft, cfg)
	assert.Len(t, ft.lines, 4)
	assert.Equal(t, "PASS", ft.lines["HandsOut"])
	assert.Contains(t, ft.lines["PoolClean"], "SKIP skipped: needs Config.Pool")

	ft = &fakeT{mu: new(sync.Mutex), lines: map[string]string{}, only: "KeysRefused"}
	Run(ft, cfg)
	assert.Equal(t, map[string]string{"KeysRefused": "PASS"}, ft.lines, "as with go test -run")

	cfg.OpenBackend = nil
	ft = &fakeT{mu: new(sync.Mutex), lines: map[string]string{}}
	Run(ft, cfg)
	assert.Contains(t, ft.lines[""], "FAIL conformance: Config needs")
}

func TestRulesAreComplete(t *testing.T) {
	t.Parallel()
	rules := Rules()
	assert.Greater(t, len(rules), 90)
	for _, r := range rules {
		assert.Regexp(t, `^[A-Z][A-Za-z]+$`, r.Name)
		assert.True(t, strings.HasSuffix(r.Statement, "."), r.Statement)
		assert.Positive(t, r.Limit)
	}
	for _, name := range []string{"exclusion", "release", "expiry", "renewal"} {
		for _, r := range rules {
			if r.Subject == name && r.Claim == "" {
				name = ""
			}
		}
		assert.Empty(t, name, "a subject that cannot be unclaimed has rules without a claim")
	}
}
