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
)

// Finding is what the suite says about one lock.
type Finding struct {
	Mistake Mistake
	Report  conformance.Report
	Failed  []string // the rules that are broken

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

// proves reports whether the evidence has a failure that is no accident.
func (m Mistake) proves(evidence string) bool {
	for _, line := range strings.Split(evidence, "\n") {
		accident := slices.ContainsFunc(accidents, func(a string) bool { return strings.Contains(line, a) })
		if strings.HasPrefix(line, "at ") && (m.Slow || !accident) {
			return true
		}
	}
	return false
}

// calm is held by the first looks together, and by a second look alone: what made the
// machine so busy that a mistake did not show may have been the first looks at others.
var calm sync.RWMutex

// Examine runs the suite on a lock. Where nothing is ever granted, cases wait until
// they are cut off: a flawed lock's run ends when patience is over and the rule that
// is named for it has been judged. If that did not catch it, the rule has more looks,
// alone and for longer.
func Examine(t *testing.T, m Mistake, cfg conformance.Config, patience time.Duration) *Finding {
	t.Helper()
	f := &Finding{Mistake: m}
	calm.RLock()
	f.look(t, cfg, patience)
	calm.RUnlock()
	prefix, budget := cfg.KeyPrefix, cfg.Budget
	for n := 1; m.Rule != "" && !f.Caught() && n <= moreLooks; n++ {
		t.Logf("%s %s: %s has not caught it yet, look %d", m.ID, m.Title, m.Rule, n)
		more := &Finding{Mistake: m}
		if prefix != "" {
			cfg.KeyPrefix = fmt.Sprintf("%slook-%d/", prefix, n)
		}
		cfg.Only, cfg.Budget = []string{m.Rule}, budget*time.Duration(1+n)
		calm.Lock()
		more.look(t, cfg, 0)
		calm.Unlock()
		f.evidence = more.evidence
	}
	return f
}

// look is one run. What follows from cutting it off is no finding.
func (f *Finding) look(t *testing.T, cfg conformance.Config, patience time.Duration) {
	t.Helper()
	m := f.Mistake
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var mu sync.Mutex
	seen, late := false, patience == 0
	enough := func() {
		if seen && late {
			stop()
		}
	}
	if m.Rule != "" {
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
			f.Failed = append(f.Failed, r.Rule)
			if r.Rule == m.Rule && m.proves(r.Evidence) {
				f.evidence = r.Evidence
			} else if r.Rule == m.Rule {
				t.Logf("%s %s: %s has failed by accident:\n%s", m.ID, m.Title, m.Rule, r.Evidence)
			}
		}
		seen = seen || m.Rule != "" && r.Rule == m.Rule
		enough()
	}
	// What may be broken besides need not be decided.
	cfg.Repeat = func(r conformance.Result) bool { return r.Rule == m.Rule || !m.MayBreak(r) }
	report, err := conformance.Check(ctx, cfg)
	assert.NoError(t, err, m.Title)
	mu.Lock()
	defer mu.Unlock()
	f.Report = report
}

// Caught reports whether the rule that is named for the mistake is broken.
func (f *Finding) Caught() bool { return f.evidence != "" }

// RequireCaught fails the test unless the suite has caught the mistake by its rule.
func (f *Finding) RequireCaught(t *testing.T) {
	t.Helper()
	if !f.Caught() {
		t.Errorf("%s does not catch it; what does: %v\n%s", f.Mistake.Rule, f.Failed, f.Report)
	}
}

// RequireNothingElse fails the test if the suite blames the lock for what is no
// consequence of its mistake.
func (f *Finding) RequireNothingElse(t *testing.T) {
	t.Helper()
	for _, rule := range f.Failed {
		// A mistake that keeps others waiting in the server makes it slow for all rules.
		if res, _ := f.Report.Result(rule); !f.Mistake.MayBreak(res) && f.Mistake.proves(res.Evidence) {
			t.Errorf("%s is broken, and is not among the rules that this mistake may break:\n%s", rule, res.Evidence)
		}
	}
}

// RequireHealthy fails the test if a rule is broken.
func (f *Finding) RequireHealthy(t *testing.T) {
	t.Helper()
	assert.Empty(t, f.Failed, "\n%s", f.Report)
	t.Log(f.Report.Counts())
}
