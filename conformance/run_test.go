package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	memlock "github.com/mortiselock/lock/memory"
)

func TestBadConfigIsRefused(t *testing.T) {
	t.Parallel()
	broken := errors.New("connection refused")
	for want, change := range map[string]func(*conformance.Config){
		"needs Open, OpenBackend or Proxy": func(c *conformance.Config) { c.OpenBackend = nil },
		"must not be negative":             func(c *conformance.Config) { c.TTL = -1 },
		"neither a rule nor a subject":     func(c *conformance.Config) { c.Only = []string{"Exclusive", "Exlusive"} },
		"connection refused": func(c *conformance.Config) {
			c.OpenBackend = func(context.Context) (backend.Backend, error) { return nil, broken }
		},
		"neither a backend nor an error": func(c *conformance.Config) {
			c.OpenBackend = func(context.Context) (backend.Backend, error) { return nil, nil }
		},
		"neither a Locker nor an error": func(c *conformance.Config) { c.Open = func(context.Context) (lock.Locker, error) { return nil, nil } },
		"the backend is nil": func(c *conformance.Config) { // a nil pointer in an interface
			c.Open = func(context.Context) (lock.Locker, error) { return lock.New(nil, nil) }
		},
		"panicked: no": func(c *conformance.Config) { c.Open = func(context.Context) (lock.Locker, error) { panic("no") } },
		"does not fit the guarantees": func(c *conformance.Config) {
			c.Guarantees = &backend.Guarantees{MinTTL: time.Second}
			c.TTL = 500 * time.Millisecond
		},
		"cannot be declared": func(c *conformance.Config) { c.Deviations = map[string]string{"Exclusive": "it is a semaphore"} },
		"has no reason":      func(c *conformance.Config) { c.Deviations = map[string]string{"RenewKeeps": " "} },
		"did you mean RenewKeeps": func(c *conformance.Config) {
			c.Deviations = map[string]string{"RenewsKeep": "locks are extended by their caller"}
		},
		"too short to test with": func(c *conformance.Config) { c.TTL = time.Millisecond },
		"contradict": func(c *conformance.Config) {
			c.Guarantees = &backend.Guarantees{MinTTL: time.Minute, MaxTTL: time.Second}
		},
		"at most 64":        func(c *conformance.Config) { c.KeyPrefix = strings.Repeat("x", 65) },
		"control character": func(c *conformance.Config) { c.KeyPrefix = "a\n" },
		"Config.Kill is needed": func(c *conformance.Config) {
			c.Open = func(ctx context.Context) (lock.Locker, error) { return memlock.New(ctx, nil) }
			c.OpenBackend, c.Guarantees = nil, &backend.Guarantees{}
		},
	} {
		cfg := memoryConfig(false, 5*time.Second)
		change(&cfg)
		_, err := conformance.Check(t.Context(), cfg)
		assert.ErrorContains(t, err, want)
	}
}

func TestCheckReports(t *testing.T) {
	t.Parallel()
	cfg := memoryConfig(false, 5*time.Second)
	cfg.Only = []string{"keys", "HandsOut", "PoolClean"}
	passes := 1
	for _, r := range conformance.Rules() {
		if r.Subject == "keys" {
			passes++
		}
	}
	require.Greater(t, passes, 1)
	var progress []string
	cfg.Progress = func(r conformance.Result) { progress = append(progress, r.Rule) }
	rep, err := conformance.Check(t.Context(), cfg)
	require.NoError(t, err)
	assert.True(t, rep.OK(), rep)
	assert.Equal(t, "memory", rep.Name)
	assert.Len(t, progress, passes+1)
	assert.Equal(t, conformance.Counts{Pass: passes, Skipped: 1}, rep.Counts())
	assert.Equal(t, "HandsOut", rep.Results[0].Rule, "in the order of Rules")
	assert.Contains(t, rep.String(), fmt.Sprintf("%d pass, 0 fail, 0 not claimed, 0 \"works, not claimed\", 0 inconclusive, 1 skipped", passes))
	res, ok := rep.Result("PoolClean")
	assert.True(t, ok)
	assert.Contains(t, res.Evidence, "needs Config.Pool")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = conformance.Check(ctx, cfg)
	assert.ErrorIs(t, err, context.Canceled)
	assert.False(t, conformance.Report{}.OK(), "nothing tested is not a pass")
	assert.False(t, conformance.Report{Results: []conformance.Result{{Verdict: conformance.Pass}, {Verdict: conformance.Inconclusive}}}.OK(), "neither kept nor broken")

	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	cfg.Progress = func(conformance.Result) { cancel() }
	rep, err = conformance.Check(ctx, cfg)
	require.NoError(t, err)
	assert.Equal(t, "the run was cancelled: context canceled", rep.Incomplete)
	assert.False(t, rep.OK(), "a run that was ended early is no pass")
	assert.True(t, strings.HasPrefix(rep.String(), "Incomplete: the run was cancelled"), rep.String())
}

// Two holders of a key come first, unless a release of somebody else's hold explains them.
func TestWhatToLookAtFirst(t *testing.T) {
	t.Parallel()
	for first, broken := range map[string][]string{
		"Exclusive":                {"ReleaseTwice", "ReleaseOwnOnly", "Exclusive", "ExclusiveWithinLocker"},
		"ReleaseOwnOnly":           {"ExclusiveAcrossTakeover", "ReleaseTwice", "ReleaseOwnOnly"},
		"ExclusiveAcrossProcesses": {"ReleaseOwnOnly", "ExclusiveAcrossProcesses", "ExclusiveThroughFaults"},
		"HandsOut":                 {"HandsOut", "ReleaseTwice"},
		"LostByDeadline":           {"ReleaseReportsLoss", "DeadlineEnds", "LostByDeadline"},
		"CloseTwice":               {"KeysRefused", "ErrorsAreTyped", "CloseTwice"},
		"KeysRefused":              {"KeysRefused", "ErrorsAreTyped"},
	} {
		subject := map[string]string{}
		for _, r := range conformance.Rules() {
			subject[r.Name] = r.Subject
		}
		var rep conformance.Report
		for _, rule := range broken {
			rep.Results = append(rep.Results, conformance.Result{Rule: rule, Subject: subject[rule], Verdict: conformance.Fail})
		}
		assert.Contains(t, rep.Verdict(), "look at "+first+" first")
	}
}

// What a lock is declared not to keep is tried, and is neither a pass nor a failure.
func TestDeviations(t *testing.T) {
	t.Parallel()
	cfg := memoryConfig(false, 5*time.Second)
	cfg.Wrap = func(b backend.Backend, ttl time.Duration) (lock.Locker, error) {
		l, err := lock.New(b, &lock.Options{TTL: ttl})
		return silent{l}, err
	}
	cfg.Only = []string{"ReleaseTwice", "ReleaseReportsLoss", "ReleaseFrees", "HandsOut"}
	rep, err := conformance.Check(t.Context(), cfg)
	require.NoError(t, err)
	assert.Equal(t, conformance.Counts{Pass: 2, Fail: 2}, rep.Counts(), rep)
	assert.Equal(t, "2 rules were broken; look at ReleaseTwice first.", rep.Verdict())

	cfg.Deviations = map[string]string{"release": "a release says nothing"}
	rep, err = conformance.Check(t.Context(), cfg)
	require.NoError(t, err)
	assert.Equal(t, conformance.Counts{Pass: 1, Deviation: 3}, rep.Counts(), rep)
	assert.True(t, rep.OK())
	res, _ := rep.Result("ReleaseReportsLoss")
	assert.True(t, strings.HasPrefix(res.Evidence, "a release says nothing\nseen when it was tried: at "), res.Evidence)
	res, _ = rep.Result("ReleaseFrees")
	assert.Equal(t, "a release says nothing\nit was kept when it was tried", res.Evidence)
}

// silent is a Locker whose releases say nothing.
type silent struct{ lock.Locker }

type silentLease struct{ lock.Lease }

func (s silent) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	l, err := s.Locker.TryAcquire(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	return silentLease{l}, nil
}

func (l silentLease) Release(ctx context.Context) error {
	_ = l.Lease.Release(ctx)
	return nil
}

// A lock that reaches one process only, claims the network, and gives the suite no
// processes, is not told that its claims were kept.
func TestClaimThatIsNotTried(t *testing.T) {
	t.Parallel()
	cfg := memoryConfig(false, 5*time.Second)
	b, err := cfg.OpenBackend(t.Context())
	require.NoError(t, err)
	g := b.Guarantees()
	require.NoError(t, b.Close())
	g.Reach = backend.ReachNetwork
	cfg.Guarantees, cfg.Only = &g, []string{"HandsOut", "ExclusiveAcrossProcesses"}
	rep, err := conformance.Check(t.Context(), cfg)
	require.NoError(t, err)
	if assert.Len(t, rep.UntriedClaims(), 1) {
		assert.Equal(t, conformance.ClaimReach, rep.UntriedClaims()[0].Claim)
	}
	assert.Contains(t, rep.Verdict(), `The claim Reach "network" was not tried (no child processes: `)
	assert.NotContains(t, rep.Verdict(), "Every claim")

	ft := &fakeT{mu: new(sync.Mutex), lines: map[string]string{}}
	conformance.Run(ft, cfg)
	assert.Equal(t, "PASS", ft.lines["HandsOut"])
	assert.Contains(t, ft.lines["claim Reach"], `SKIP not tried, which is not a pass: The claim Reach "network" was not tried (no child processes: `)
	assert.Contains(t, ft.lines["claim Reach"], "Config.Child")
}

// fakeT records what Run makes of the results.
type fakeT struct {
	mu    *sync.Mutex
	lines map[string]string
	name  string
	only  string
}

func (t *fakeT) Helper() {}

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
	synctest.Test(t, func(t *testing.T) {
		runMakesSubtests(t)
		time.Sleep(time.Hour) // for what still waits
	})
}

func runMakesSubtests(t *testing.T) {
	cfg := memoryConfig(false, 5*time.Second)
	cfg.Only = []string{"HandsOut", "PoolClean", "KeysRefused", "FairOrder"}
	ft := &fakeT{mu: new(sync.Mutex), lines: map[string]string{}}
	conformance.Run(ft, cfg)
	assert.Len(t, ft.lines, 4)
	assert.Equal(t, "PASS", ft.lines["HandsOut"])
	assert.Contains(t, ft.lines["PoolClean"], "SKIP skipped: needs Config.Pool")

	ft = &fakeT{mu: new(sync.Mutex), lines: map[string]string{}, only: "KeysRefused"}
	conformance.Run(ft, cfg)
	assert.Equal(t, map[string]string{"KeysRefused": "PASS"}, ft.lines, "as with go test -run")

	cfg.OpenBackend = nil
	ft = &fakeT{mu: new(sync.Mutex), lines: map[string]string{}}
	conformance.Run(ft, cfg)
	assert.Contains(t, ft.lines[""], "FAIL conformance: Config needs")
}

func TestRulesAreComplete(t *testing.T) {
	t.Parallel()
	rules := conformance.Rules()
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
