package peers

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/servertest"
)

var (
	update = flag.Bool("update", false, "write docs/peers.md")
	rounds = flag.Int("rounds", 1, "how often the suite is run on each peer; a rule that is both kept and broken varies")
	budget = flag.Duration("budget", 8*time.Second, "budget of a run")
)

const page = "../../docs/peers.md"

// further is how often a rule is tried again at most, of which a run says otherwise than
// the page.
const further = 10

func TestMain(m *testing.M) {
	conformance.Child(ConfigOf)
	os.Exit(servertest.Main(m))
}

// TestPage runs the suite on every peer, makes the page of what it saw, and holds
// docs/peers.md against it.
//
// A rule of somebody else's lock may be a race, which one run meets and another one
// does not. So what a run says otherwise than the page is tried again, until a round
// agrees with the page, and all of these rounds count: the page is stale when every one
// of them contradicts it. What comes out both ways is logged, and the page says so when
// it is made anew. So is what the machine was too slow for in every round.
func TestPage(t *testing.T) {
	was := map[string][]string{}
	var old string
	if !*update {
		data, err := os.ReadFile(page)
		require.NoError(t, err)
		old = string(data)
		was = wordsOf(old)
		for _, r := range conformance.Rules() {
			if was[r.Name] == nil {
				was[r.Name] = slices.Repeat([]string{unlisted}, len(All()))
			}
		}
	}
	found := map[string]*outcome{}
	var mu sync.Mutex
	t.Run("peers", func(t *testing.T) {
		for i, p := range All() {
			t.Run(p.Name, func(t *testing.T) {
				t.Parallel()
				said := map[string]string{}
				for rule, words := range was {
					said[rule] = words[i]
				}
				o := try(t, p, said)
				mu.Lock()
				defer mu.Unlock()
				found[p.Name] = o
			})
		}
	})
	if t.Failed() || len(found) < len(All()) {
		return // or skipped, for want of a server
	}
	if *update {
		for _, p := range All() {
			assert.ElementsMatch(t, slices.Sorted(maps.Keys(found[p.Name].evidence)), slices.Sorted(maps.Keys(p.Breaks)),
				"Peer.Breaks of %s has the rules that it was seen to break, and no others", p.Name)
		}
		require.NoError(t, os.WriteFile(page, []byte(pageOf(found, *rounds)), 0o644))
		return
	}
	for i, p := range All() {
		for rule, words := range was {
			o := found[p.Name]
			now := o.word(rule)
			says := fmt.Sprintf("docs/peers.md says that %s of %s is %q; in %d rounds it was %q, and broken in %d:\n%s",
				rule, p.Name, words[i], o.tried[rule], now, o.broken[rule], o.evidence[rule])
			switch {
			case o.contradicts(rule, words[i]):
				t.Error(says)
			case words[i] == unlisted:
				o.words[rule] = skipped
				continue
			case words[i] != now && words[i] != varies:
				t.Log(says)
			}
			o.words[rule] = words[i]
		}
	}
	// The rest of the page: its words, the libraries and their versions, the rules.
	assert.Equal(t, tablesOf(old), tablesOf(pageOf(found, *rounds)), "docs/peers.md is stale; its first line says how to make it anew")
}

// TestAdapters: the libraries are tested through little code of ours.
func TestAdapters(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	adapters := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if !strings.HasSuffix(file, "_test.go") && strings.Contains(string(text), "conformance.Adapter{") {
			adapters++
			_, code, ok := strings.Cut(string(text), "\n)\n") // after the imports
			require.True(t, ok)
			assert.LessOrEqual(t, strings.Count(strings.TrimSpace(code), "\n")+1, 40, "lines of %s", file)
		}
	}
	assert.Equal(t, len(All()), adapters, "files with an adapter")
}

// TestBreaksAreExplained: the page blames nobody without saying what happens and what
// was promised.
func TestBreaksAreExplained(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	for rule, words := range wordsOf(string(text)) {
		for i, p := range All() {
			if words[i] == breaks || words[i] == varies {
				assert.NotEmpty(t, p.Breaks[rule], "%s of %s", rule, p.Name)
			} else {
				assert.Empty(t, p.Breaks[rule], "%s of %s, which the page says is not broken", rule, p.Name)
			}
		}
	}
}

// TestWords: what comes of a rule in several rounds is one word, and what a library does
// not promise is not held against it.
func TestWords(t *testing.T) {
	t.Parallel()
	p := All()[0]
	p.Deviations = map[string]string{"ReleaseDetached": "no", "close": "no"}
	p.Breaks = map[string]string{"ReleaseTwice": "it promises otherwise"}
	o := newOutcome()
	for round := range 3 {
		for rule, verdicts := range map[string][3]conformance.Verdict{
			"Exclusive":       {conformance.Pass, conformance.Pass, conformance.Pass},
			"ReleaseTwice":    {conformance.Fail, conformance.Fail, conformance.Fail},
			"WaiterWakes":     {conformance.Pass, conformance.Fail, conformance.Pass},
			"ReleaseDetached": {conformance.Deviation, conformance.Deviation, conformance.Deviation},
			"TokenFits":       {conformance.NotClaimed, conformance.Unclaimed, conformance.NotClaimed},
			"ReleaseFrees":    {conformance.Skipped, conformance.Skipped, conformance.Skipped},
		} {
			o.add(conformance.Result{Rule: rule, Subject: "release", Verdict: verdicts[round], Evidence: "at 0.1 s: seen in conformance/0a1b2c3d/x\nmore"})
		}
		o.add(conformance.Result{Rule: "Exclusive", Verdict: conformance.Inconclusive})
		o.add(conformance.Result{Rule: "CloseTwice", Subject: "close", Verdict: conformance.Deviation, Evidence: "no\nseen when it was tried: at 0.1 s: more"})
	}
	assert.Equal(t, map[string]string{
		"Exclusive": keeps, "ReleaseTwice": breaks, "WaiterWakes": varies, "ReleaseDetached": notClaimed,
		"TokenFits": notClaimed, "ReleaseFrees": skipped, "CloseTwice": notClaimed,
	}, o.words)
	assert.Equal(t, 1, o.broken["WaiterWakes"])
	text := evidenceOf(p, o, 3)
	assert.Contains(t, text, "- **ReleaseTwice** (breaks): it promises otherwise.\n  Seen: seen in x\n")
	assert.Contains(t, text, "- **WaiterWakes** (varies, 1 of 3 rounds): ")
	assert.NotContains(t, text, "ReleaseDetached")
	assert.NotContains(t, text, "CloseTwice")
}

// TestContradictions: a rule that came out both ways, or not at all, makes no page stale.
func TestContradictions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		page     string
		verdicts []conformance.Verdict
		stale    bool
	}{
		{keeps, []conformance.Verdict{conformance.Pass, conformance.Pass}, false},
		{keeps, []conformance.Verdict{conformance.Fail, conformance.Fail}, true},
		{keeps, []conformance.Verdict{conformance.Fail, conformance.Pass}, false},
		{keeps, []conformance.Verdict{conformance.Fail, conformance.Inconclusive}, true},
		{keeps, []conformance.Verdict{conformance.Inconclusive}, false},
		{keeps, []conformance.Verdict{conformance.Skipped}, true},
		{breaks, []conformance.Verdict{conformance.Pass, conformance.Pass}, true},
		{breaks, []conformance.Verdict{conformance.Pass, conformance.Fail}, false},
		{varies, []conformance.Verdict{conformance.Pass, conformance.Pass}, false},
		{varies, []conformance.Verdict{conformance.Fail}, false},
		{varies, []conformance.Verdict{conformance.Deviation}, true},
		{notClaimed, []conformance.Verdict{conformance.Fail, conformance.Deviation}, false},
		{notClaimed, []conformance.Verdict{conformance.Pass}, true},
		{undecided, []conformance.Verdict{conformance.Pass}, false},
		{skipped, []conformance.Verdict{conformance.Pass}, true},
		{unlisted, []conformance.Verdict{conformance.Pass}, true},
		{unlisted, []conformance.Verdict{conformance.Fail, conformance.Deviation}, false},
		{unlisted, []conformance.Verdict{conformance.Deviation}, false},
	} {
		o := newOutcome()
		for _, v := range c.verdicts {
			o.add(conformance.Result{Rule: "Exclusive", Verdict: v})
		}
		assert.Equal(t, c.stale, o.contradicts("Exclusive", c.page), "the page says %q, the rounds say %v", c.page, c.verdicts)
	}
}

// tablesOf is the page without what differs from run to run: the number of rounds and
// the evidence.
func tablesOf(text string) string {
	text, _, _ = strings.Cut(text, evidenceHeading)
	before, rest, _ := strings.Cut(text, roundsBegin)
	_, after, _ := strings.Cut(rest, roundsEnd)
	return before + after
}

// try runs the suite on a peer. said are the words of the page about it, if there is
// one.
func try(t *testing.T, p Peer, said map[string]string) *outcome {
	addr := ""
	switch p.Server {
	case "redis":
		addr = servertest.SharedRedis(t).Addr()
	case "etcd":
		addr = servertest.SharedEtcd(t).Addr()
	}
	o := newOutcome()
	for range *rounds {
		o.run(t, p, addr, nil)
	}
	for range further {
		again := []string{}
		for rule, word := range said {
			if o.contradicts(rule, word) {
				again = append(again, rule)
			}
		}
		if len(again) == 0 {
			break
		}
		o.run(t, p, addr, again)
	}
	return o
}

// run runs the suite once, or the rules of a list, and adds what it saw.
func (o *outcome) run(t *testing.T, p Peer, addr string, only []string) {
	cfg := p.Config(addr)
	cfg.Budget, cfg.Only = *budget, only
	rep, err := conformance.Check(t.Context(), cfg)
	require.NoError(t, err)
	for _, r := range rep.Results {
		o.add(r)
	}
}
