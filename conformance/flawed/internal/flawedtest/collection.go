// Package flawedtest is for the tests of the collections of flawed locks: it runs the
// conformance suite on a lock, checks what is written about the collection, and keeps
// docs/flawed-locks.md, whose parts are the collections.
package flawedtest

import (
	"flag"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/flawed/internal/flaw"
)

var update = flag.Bool("update", false, "write the collection's part of docs/flawed-locks.md")

// mayBreak reports whether the mistake may break the rule of the result. That no two
// hold a key at one time is watched in the cases of every rule: where Exclusive may be
// broken, two callers who meet at a key may show it anywhere, and where takeovers may be
// wrong, so may a lease that runs out because the machine is slow.
func mayBreak(l flaw.Lock, r conformance.Result) bool {
	return names(l, r.Rule) || names(l, r.Subject) ||
		(names(l, "Exclusive") || names(l, "ExclusiveAcrossTakeover")) && onlyOverlaps(r.Evidence)
}

// names reports whether the rule, or the subject of rules, is the one that must catch
// the mistake or among the others that it may break.
func names(l flaw.Lock, rule string) bool { return rule == l.Rule || slices.Contains(l.Also, rule) }

// onlyOverlaps reports whether the evidence is of holds of one key that overlap, and of
// nothing else but the grant that made them.
func onlyOverlaps(evidence string) bool {
	found := false
	for _, line := range strings.Split(evidence, "\n") {
		if !strings.HasPrefix(line, "at ") {
			continue
		}
		overlap := strings.Contains(line, ": two leases of one key were valid at the same time: ")
		if !overlap && !strings.Contains(line, " was granted; expected a refusal, because ") {
			return false
		}
		found = found || overlap
	}
	return found
}

// Collection is the flawed locks of one package, and the healthy ones that they are made
// of.
type Collection struct {
	part            part
	flawed, healthy []flaw.Lock
	places          chan struct{} // of the locks under test
}

// New is the collection of the package with that name, which has a part on the page. So
// many of its locks are examined together.
func New(pkg string, together int, flawed, healthy []flaw.Lock) *Collection {
	for _, p := range parts {
		if path.Base(p.dir) == pkg {
			return &Collection{p, flawed, healthy, make(chan struct{}, together)}
		}
	}
	panic("flawedtest: the page has no part for " + pkg)
}

// CheckRegistry requires that everything is said about each mistake, and that the
// files and the rules that it names exist. No two mistakes share a file, and every lock that
// is written down is listed.
func (c *Collection) CheckRegistry(t *testing.T) {
	t.Helper()
	rules := map[string]bool{}
	for _, r := range conformance.Rules() {
		rules[r.Name], rules[r.Subject] = true, true
	}
	files := map[string]bool{}
	require.NotEmpty(t, c.flawed)
	for _, m := range c.flawed {
		for what, text := range map[string]string{
			"ID": m.ID, "Title": m.Title, "Summary": m.Summary, "Seen": m.Seen, "Instead": m.Instead, "Rule": m.Rule,
		} {
			assert.NotEmpty(t, text, "%s of %s", what, m.File)
		}
		assert.FileExists(t, m.File)
		assert.False(t, files[m.File], "%s has two locks", m.File)
		files[m.File] = true
		for _, name := range append([]string{m.Rule}, m.Also...) {
			assert.True(t, rules[name], "%s names the rule %s, which does not exist", m.File, name)
		}
	}
	all, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, name := range all {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		if broken.Match(text) {
			assert.True(t, files[name], "%s has a lock that is not listed in All", name)
		}
	}
}

// broken is in each file that has a broken lock.
var broken = regexp.MustCompile(`\bRule: +"`)
