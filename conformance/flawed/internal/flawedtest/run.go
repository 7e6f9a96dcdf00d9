package flawedtest

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/flawed/internal/flaw"
)

// Run is how the suite is run on the locks of a collection.
type Run struct {
	// Server is what the lock is made on, as its Maker wants it. It is called once for
	// each lock.
	Server func(t *testing.T, l flaw.Lock) any
	// Tune sets Budget, and Only; nil, Budget is 2 s. Where it sets no Only, a broken lock is
	// tried with the rule that is named for it. A healthy one on a server is tried with those
	// of the collection, and one in memory with all. LOCK_TEST_LONG has all rules tried instead,
	// LOCK_TEST_RULE the one that it names.
	Tune func(l flaw.Lock, cfg *conformance.Config)
	// Patience is how long the suite may go on with a broken lock. Where nothing is ever
	// granted, cases wait until they are cut off. Zero: as long as it takes.
	Patience time.Duration
}

// CheckFlawed is the suite's own test: it must catch every broken lock, by the rule that
// is named for it, and where all rules are run it must not blame the lock for what it
// does right.
func (c *Collection) CheckFlawed(t *testing.T, run Run) {
	t.Helper()
	var table strings.Builder
	caught, failing := 0, 0
	found := c.examine(t, c.flawed, run, func(t *testing.T, f *finding) {
		if f.only == nil || slices.Contains(f.only, f.lock.Rule) {
			f.requireCaught(t)
		}
		if f.only == nil || chosen() != "" {
			f.requireNothingElse(t)
		}
	})
	for _, f := range found {
		if one := chosen(); one != "" && f.lock.Rule != one && len(f.failed) == 0 {
			continue // it passes the only rule that was tried
		}
		if len(f.failed) > 0 {
			failing++
		}
		by := "NOT CAUGHT"
		switch {
		case f.caught():
			caught++
			by = "caught by " + f.lock.Rule
		case f.only != nil && !slices.Contains(f.only, f.lock.Rule):
			by = "fails " + strings.Join(f.failed, ", ")
		}
		if n := len(f.failed) - 1; n > 0 {
			by += fmt.Sprintf(", and %d more", n)
		}
		fmt.Fprintf(&table, "%-4s %-56s %s (%.0f s)\n", f.lock.ID, f.lock.Title, by, f.report.Seconds)
	}
	t.Logf("\n%s%d flawed locks, %d fail a rule that was tried, %d the rule named for them", &table, len(found), failing, caught)
}

// CheckHealthy is the control: the suite passes on the locks that the broken ones are
// made of, or else a failure on a broken one would prove nothing.
func (c *Collection) CheckHealthy(t *testing.T, run Run) {
	t.Helper()
	c.examine(t, c.healthy, run, func(t *testing.T, f *finding) { f.requireHealthy(t) })
}

// examine examines locks, each in a subtest, and returns what was found on those that
// were selected.
func (c *Collection) examine(t *testing.T, locks []flaw.Lock, run Run, check func(t *testing.T, f *finding)) (found []*finding) {
	t.Helper()
	findings := make([]*finding, len(locks))
	var all sync.WaitGroup
	prefix := fmt.Sprintf("flawed/%d/%s/", os.Getpid(), t.Name())
	for i, l := range locks {
		all.Go(func() {
			c.places <- struct{}{}
			defer func() { <-c.places }()
			t.Run(l.ID+" "+l.Title, func(t *testing.T) {
				examine := func(t *testing.T) { findings[i] = c.one(t, run, l, fmt.Sprintf("%s%d/", prefix, i)) }
				if l.Rule == "" && l.Over == flaw.Memory { // some broken ones never rest
					virtually(t, examine)
				} else {
					examine(t)
				}
				check(t, findings[i])
			})
		})
	}
	all.Wait()
	for _, f := range findings {
		if f != nil {
			found = append(found, f)
		}
	}
	return found
}

func (c *Collection) one(t *testing.T, r Run, l flaw.Lock, keyPrefix string) *finding {
	t.Helper()
	var server any
	if r.Server != nil {
		server = r.Server(t, l)
	}
	cfg, err := l.Config(t.Context(), server)
	require.NoError(t, err)
	cfg.KeyPrefix, cfg.Budget = keyPrefix, 2*time.Second // the suite's least number of rounds
	if r.Tune != nil {
		r.Tune(l, &cfg)
	}
	if rule := chosen(); rule != "" {
		if cfg.Only != nil && !slices.Contains(cfg.Only, rule) {
			t.Skipf("its collection tries it with %v only", cfg.Only)
		}
		cfg.Only = []string{rule}
	} else if cfg.Only == nil && os.Getenv("LOCK_TEST_LONG") == "" {
		switch {
		case l.Rule != "":
			cfg.Only = []string{l.Rule}
		case l.Over != flaw.Memory:
			cfg.Only = c.named()
		}
	}
	return examine(t, l, cfg, r.Patience)
}

// chosen is the one rule that all locks are to be tried with, if there is one.
func chosen() string { return os.Getenv("LOCK_TEST_RULE") }

// named lists the rules that are named for the mistakes of the collection.
func (c *Collection) named() []string {
	var rules []string
	for _, l := range c.flawed {
		rules = append(rules, l.Rule)
	}
	return rules
}

// virtually runs f in a bubble, where waiting takes no time and a busy machine makes
// nothing late. What still waits there in the end is given time to end.
func virtually(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(t)
		time.Sleep(time.Hour)
	})
}
