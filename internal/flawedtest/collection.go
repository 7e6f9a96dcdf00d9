// Package flawedtest is for the tests of the collections of flawed locks: it runs the
// conformance suite on a lock, checks what is written about the collection, and keeps
// docs/flawed-locks.md, whose parts are the collections.
package flawedtest

import (
	"flag"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance"
)

var update = flag.Bool("update", false, "write the collection's part of docs/flawed-locks.md")

// Mistake is what is written about one flawed lock. The fields mean what they mean in
// the collections.
type Mistake struct {
	ID, Title, Summary, Seen, Instead, File string

	Rule string   // that must catch it; empty for a healthy lock
	Also []string // other rules, or subjects of rules, that it may break
	Slow bool     // the mistake is that it takes too long
}

// MayBreak reports whether the mistake may break the rule of the result. That no two
// hold a key at one time is watched in the cases of every rule: where Exclusive may be
// broken, two callers who meet at a key may show it anywhere, and where takeovers may be
// wrong, so may a lease that runs out because the machine is slow.
func (m Mistake) MayBreak(r conformance.Result) bool {
	return m.names(r.Rule) || m.names(r.Subject) ||
		(m.names("Exclusive") || m.names("ExclusiveAcrossTakeover")) && onlyOverlaps(r.Evidence)
}

// names reports whether the rule, or the subject of rules, is the one that must catch
// the mistake or among the others that it may break.
func (m Mistake) names(rule string) bool { return rule == m.Rule || slices.Contains(m.Also, rule) }

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

// Collection is the flawed locks of one package.
type Collection struct {
	part     part
	mistakes []Mistake
}

// New is the collection of the package with that name, which has a part on the page.
func New(pkg string, mistakes ...Mistake) *Collection {
	c := &Collection{mistakes: mistakes}
	for _, p := range parts {
		if path.Base(p.dir) == pkg {
			c.part = p
			return c
		}
	}
	panic("flawedtest: the page has no part for " + pkg)
}

// CheckRegistry requires that everything is said about each mistake, and that the
// files and the rules that it names exist. No two mistakes share a file.
func (c *Collection) CheckRegistry(t *testing.T) {
	t.Helper()
	rules := map[string]bool{}
	for _, r := range conformance.Rules() {
		rules[r.Name], rules[r.Subject] = true, true
	}
	files := map[string]bool{}
	require.NotEmpty(t, c.mistakes)
	for _, m := range c.mistakes {
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
}
