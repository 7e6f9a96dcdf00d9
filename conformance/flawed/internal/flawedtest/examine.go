package flawedtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/flawed/internal/flaw"
)

// finding is what the suite says about one lock.
type finding struct {
	lock   flaw.Lock
	report conformance.Report
	failed []string // the rules that are broken
	only   []string // the rules that were run; nil: all

	evidence string // of the rule that is named for the mistake; empty if it passed
}

// moreLooks is how often the rule of a mistake has another look. Where the mistake is
// a race, its lock dawdles at its weak point, so that one look is enough; a busy machine
// can hide it all the same.
const moreLooks = 1

// accidents are in failures that any slow server or machine can bring about, and that
// prove nothing about a mistake.
var accidents = []string{
	"no answer from the server within", "the server is slow or the TTL too short", "the case was too slow", "could not be opened",
}

// proves reports whether the evidence has a failure that is no accident, or that is the
// mistake of a slow lock.
func proves(evidence string, slow bool) bool {
	for _, line := range strings.Split(evidence, "\n") {
		accident := slices.ContainsFunc(accidents, func(a string) bool { return strings.Contains(line, a) })
		if strings.HasPrefix(line, "at ") && (slow || !accident) {
			return true
		}
	}
	return false
}

// calm is held by the first looks together, and by a second look alone: what made the
// machine so busy that a mistake did not show may have been the first looks at others.
var calm sync.RWMutex

// examine runs the suite on a lock. Where nothing is ever granted, cases wait until
// they are cut off: a flawed lock's run ends when patience is over and the rule that
// is named for it has been judged. If that did not catch it, the rule has more looks,
// alone and for longer.
func examine(t *testing.T, l flaw.Lock, cfg conformance.Config, patience time.Duration) *finding {
	t.Helper()
	f := &finding{lock: l, only: cfg.Only}
	calm.RLock()
	f.look(t, cfg, patience)
	calm.RUnlock()
	prefix, budget := cfg.KeyPrefix, cfg.Budget
	tried := l.Rule != "" && (f.only == nil || slices.Contains(f.only, l.Rule))
	for n := 1; tried && !f.caught() && n <= moreLooks; n++ {
		t.Logf("%s %s: %s has not caught it yet, look %d", l.ID, l.Title, l.Rule, n)
		more := &finding{lock: l}
		if prefix != "" {
			cfg.KeyPrefix = fmt.Sprintf("%slook-%d/", prefix, n)
		}
		cfg.Only, cfg.Budget = []string{l.Rule}, budget*time.Duration(1+n)
		calm.Lock()
		more.look(t, cfg, 0)
		calm.Unlock()
		f.evidence = more.evidence
	}
	return f
}

// look is one run. What follows from cutting it off is no finding.
func (f *finding) look(t *testing.T, cfg conformance.Config, patience time.Duration) {
	t.Helper()
	l := f.lock
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var mu sync.Mutex
	seen, late := false, patience == 0
	enough := func() {
		if seen && late {
			stop()
		}
	}
	if l.Rule != "" {
		defer time.AfterFunc(patience, func() {
			mu.Lock()
			defer mu.Unlock()
			late = true
			enough()
		}).Stop()
	}
	cfg.Progress = func(r conformance.Result) {
		mu.Lock()
		defer mu.Unlock()
		if r.Verdict == conformance.Fail && ctx.Err() == nil {
			f.failed = append(f.failed, r.Rule)
			if r.Rule == l.Rule && proves(r.Evidence, l.Slow) {
				f.evidence = r.Evidence
			} else if r.Rule == l.Rule {
				t.Logf("%s %s: %s has failed by accident:\n%s", l.ID, l.Title, l.Rule, r.Evidence)
			}
		}
		seen = seen || l.Rule != "" && r.Rule == l.Rule
		enough()
	}
	// What may be broken besides need not be decided.
	cfg.Repeat = func(r conformance.Result) bool { return r.Rule == l.Rule || !mayBreak(l, r) }
	report, err := conformance.Check(ctx, cfg)
	assert.NoError(t, err, l.Title)
	mu.Lock()
	defer mu.Unlock()
	f.report = report
}

// caught reports whether the rule that is named for the mistake is broken.
func (f *finding) caught() bool { return f.evidence != "" }

// requireCaught fails the test unless the suite has caught the mistake by its rule.
func (f *finding) requireCaught(t *testing.T) {
	t.Helper()
	if !f.caught() {
		t.Errorf("%s does not catch it; what does: %v. Make the mistake in %s plainer (dawdle where it is a race), or the rule stricter\n%s",
			f.lock.Rule, f.failed, f.lock.File, f.report)
	}
}

// requireNothingElse fails the test if the suite blames the lock for what is no
// consequence of its mistake.
func (f *finding) requireNothingElse(t *testing.T) {
	t.Helper()
	for _, rule := range f.failed {
		// A mistake that keeps others waiting in the server makes it slow for all rules.
		if res, _ := f.report.Result(rule); !mayBreak(f.lock, res) && proves(res.Evidence, f.lock.Slow) {
			t.Errorf("%s is broken, and is not among the rules that this mistake may break: if it follows from the mistake, add it to Also in %s; if not, the lock has a second mistake, or the rule blames too much\n%s",
				rule, f.lock.File, res.Evidence)
		}
	}
}

// requireHealthy fails the test if a rule is broken.
func (f *finding) requireHealthy(t *testing.T) {
	t.Helper()
	for _, rule := range f.failed {
		res, _ := f.report.Result(rule)
		t.Errorf("%s is broken, though the lock is healthy:\n%s", rule, res.Evidence)
	}
	t.Log(f.report.Counts())
}
