//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/servertest"
)

var update = flag.Bool("update", false, "write the generated parts of the pages")

// TestGuaranteesPage requires that the page is what the backends declare, without the proofs.
func TestGuaranteesPage(t *testing.T) {
	const (
		page   = "../../docs/guarantees.md"
		begins = "<!-- generated: go test ./cmd/lockctl -run TestGuaranteesPage -update -->\n"
		ends   = "<!-- end of the generated part -->\n"
	)
	old, err := os.ReadFile(page)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(old), begins)
	require.True(t, ok, "the page has lost the mark of its generated part")
	_, after, ok := strings.Cut(rest, ends)
	require.True(t, ok, "the page has lost the end of its generated part")
	var table bytes.Buffer
	require.NoError(t, compareMarkdown(&table, backend.DefaultMux.Declared()))
	promised, _, ok := strings.Cut(table.String(), "\n## What proves it\n") // which only compare prints
	require.True(t, ok)
	want := before + begins + "\n" + promised + "\n" + ends + after
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(want), 0o644))
		return
	}
	if want != string(old) { // to show the pages helps nobody
		t.Error("docs/guarantees.md is stale: go test ./cmd/lockctl -run TestGuaranteesPage -update")
	}
}

// TestEverySchemeIsDeclared: a backend that is compiled in is in the comparison.
func TestEverySchemeIsDeclared(t *testing.T) {
	t.Parallel()
	declared := map[string]bool{}
	for _, d := range backend.DefaultMux.Declared() {
		scheme, _, _ := strings.Cut(d.URL, ":")
		declared[scheme] = true
		assert.NotEmpty(t, d.Guarantees.Name, d.URL)
		assert.NotEmpty(t, d.Guarantees.Assumptions, d.URL)
		for _, a := range d.Guarantees.Assumptions {
			assert.LessOrEqual(t, len(strings.Fields(a)), 25, "words: %s", a)
		}
	}
	sameWithTLS := map[string]string{"rediss": "redis", "etcds": "etcd", "zks": "zk"}
	for _, scheme := range backend.DefaultMux.Schemes() {
		if slices.Contains([]string{flawedScheme, crowdedScheme, narrowScheme, slowScheme, fleetingScheme}, scheme) {
			continue // of these tests
		}
		assert.True(t, declared[scheme] || declared[sameWithTLS[scheme]], "the package of %s: does not call Declare", scheme)
	}
}

func TestPromisesNameRulesThatExist(t *testing.T) {
	t.Parallel()
	var names, subjects, claims []string
	for _, r := range conformance.Rules() {
		names, subjects, claims = append(names, r.Name), append(subjects, r.Subject), append(claims, r.Claim)
	}
	for _, p := range promises {
		for _, r := range p.rules {
			assert.Contains(t, names, r, p.title)
		}
		for _, s := range p.subjects {
			assert.Contains(t, subjects, s, p.title)
		}
		for _, c := range p.claims {
			assert.True(t, slices.ContainsFunc(claims, func(of string) bool { return strings.Contains(of, c) }), "%s: no rule has the claim %s", p.title, c)
		}
		for name, tests := range p.tests {
			assert.True(t, slices.ContainsFunc(backend.DefaultMux.Declared(), func(d backend.Declaration) bool { return d.Guarantees.Name == name }), "%s: no backend calls itself %s", p.title, name)
			for _, test := range tests {
				requireTest(t, test)
			}
		}
		for _, d := range backend.DefaultMux.Declared() {
			assert.NotEmpty(t, p.cell(d.Guarantees), "%s: %s", d.URL, p.title)
			if slices.Contains(nothing, p.cell(d.Guarantees)) {
				assert.Empty(t, p.provenBy(d.Guarantees), "%s: %s: nothing is promised", d.URL, p.title)
			} else {
				assert.NotEmpty(t, p.provenBy(d.Guarantees), "%s: %s", d.URL, p.title)
			}
		}
	}
}

// requireTest requires that a package, named by its folder, has the test.
func requireTest(t *testing.T, name string) {
	t.Helper()
	folder, function, ok := strings.Cut(name, ".")
	require.True(t, ok, name)
	files, err := filepath.Glob(filepath.Join("..", "..", folder, "*_test.go"))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if bytes.Contains(text, []byte("\nfunc "+function+"(t *testing.T) {")) {
			return
		}
	}
	t.Errorf("there is no test %s", name)
}

// What survives something of its server's is proved by a test that does it to the server.
func TestWhatServersSurviveIsProvedByTests(t *testing.T) {
	t.Parallel()
	beyond := func(list []backend.Fault) bool { // what the suite does
		return slices.ContainsFunc(list, func(e backend.Fault) bool {
			return e != backend.FaultClientCrash && e != backend.FaultRecordRemoved
		})
	}
	for _, d := range backend.DefaultMux.Declared() {
		g := d.Guarantees
		assert.Equal(t, beyond(g.HoldsSurvive), len(survivingHolds[g.Name]) > 0, "%s: holds", d.URL)
		assert.Equal(t, beyond(g.TokenSurvives), len(risingTokens[g.Name]) > 0, "%s: tokens", d.URL)
	}
}

// Each cell is marked with the rules that prove it, and with no rule that is about
// something that its backend does not claim.
func TestCellsAreMarkedWithTheirRules(t *testing.T) {
	t.Parallel()
	rules := map[string]conformance.Rule{}
	for _, r := range conformance.Rules() {
		rules[r.Name] = r
	}
	plain := backend.Guarantees{
		Name: "plain", Reach: backend.ReachNetwork, Expiry: backend.ClockServerWall, Token: backend.TokenNone,
		Reentrancy: backend.ReentrancyNone, Waiting: backend.WaitPoll,
	}
	fair := plain
	fair.Fair, fair.WithoutRenewal, fair.Token, fair.Waiting = true, true, backend.TokenCounter, backend.WaitQueue
	found := []backend.Declaration{{URL: "a:", Guarantees: fair}, {URL: "b:", Guarantees: plain}}
	marks, proofs := proofsOf(promises, found)
	for row, p := range promises {
		for i, d := range found {
			n := marks[row][i]
			if n == 0 {
				assert.Contains(t, nothing, p.cell(d.Guarantees), "%s: %s", d.URL, p.title)
				continue
			}
			assert.Equal(t, p.title, proofs[n-1].promise)
			for name := range strings.SplitSeq(proofs[n-1].rules, ", ") {
				if r, ok := rules[name]; ok {
					assert.True(t, r.Claimed(d.Guarantees), "%s: %s: %s", d.URL, p.title, name)
				}
			}
		}
	}
	order := slices.IndexFunc(promises, func(p promise) bool { return p.title == "first come, first served" })
	assert.Contains(t, proofs[marks[order][0]-1].rules, "QueueOrder")
	assert.Equal(t, "WaiterOrderLocal", proofs[marks[order][1]-1].rules)

	var text, page, json bytes.Buffer
	require.NoError(t, compareText(&text, found))
	assert.Regexp(t, `first come, first served\n  a: +across clients +\[1\]\n  b: +within a Locker +\[2\]\n  \[1\] proved by .*QueueOrder.*\n  \[2\] proved by WaiterOrderLocal\n`, text.String())
	assert.Regexp(t, `excludes\n  a: .*\n  b: .*\n  `, text.String())
	require.NoError(t, compareMarkdown(&page, found))
	assert.Contains(t, page.String(), "| **first come, first served** | across clients | within a Locker |\n")
	assert.Contains(t, page.String(), "| **fencing token** | a counter of ours | none |\n")
	assert.Contains(t, page.String(), "- **excludes**: whoever reaches the server\n", "alike on both")
	assert.Contains(t, page.String(), "| first come, first served | WaiterOrderLocal; `a:`: FairOrder, QueueOrder |\n")
	require.NoError(t, compareJSON(&json, found))
	assert.Contains(t, json.String(), `{"promise":"first come, first served","cell":"within a Locker","proven_by":["WaiterOrderLocal"]}`)
	assert.Contains(t, json.String(), `{"promise":"manual renewal","cell":"no","proven_by":[]}`)
}

func TestCompare(t *testing.T) {
	t.Parallel()
	redis := servertest.SharedRedis(t)
	status, out, errs := run(t, "", "compare", "file:"+t.TempDir(), redis.URL())
	require.Equal(t, exitOK, status, errs)
	assert.Contains(t, out, "processes of one machine")
	assert.Contains(t, out, "whoever reaches the server")
	assert.Contains(t, out, "proved by")

	args, urls := []string{"compare", "mem:"}, []string{"mem:"}
	for _, p := range places {
		url := p.url(t)
		u, err := backend.ParseURL(url)
		require.NoError(t, err)
		args, urls = append(args, url), append(urls, u.String())
	}
	status, out, errs = run(t, "", args...)
	require.Equal(t, exitOK, status, errs)
	for _, url := range urls {
		assert.Contains(t, out, "  "+url+" ", "a backend is not in the comparison")
		assert.Contains(t, out, url+" assumes\n")
	}
	assert.NotContains(t, out+errs, servertest.SharedMariaDB(t).Password())

	status, out, errs = run(t, "", "compare", "--format", "json")
	require.Equal(t, exitOK, status, errs)
	var found []backend.Declaration
	require.NoError(t, json.Unmarshal([]byte(out), &found))
	assert.Len(t, found, len(backend.DefaultMux.Declared()))

	status, _, errs = run(t, "", "compare", "--format", "html")
	assert.Equal(t, exitUsage, status)
	assert.Contains(t, errs, "it is text, markdown or json")
	status, out, errs = run(t, "", "compare", "redis://:hunter2@127.0.0.1:1")
	assert.Equal(t, exitUnavailable, status)
	assert.Empty(t, out)
	assert.NotContains(t, errs, "hunter2")
}
