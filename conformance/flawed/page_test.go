package flawed

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance"
)

var update = flag.Bool("update", false, "write docs/flawed-locks.md from a run of the suite")

const page = "../../docs/flawed-locks.md"

const pageHead = `# Flawed locks

Locks as people write them, in the order in which the mistakes are met, each with what goes wrong, what to do
instead, and what the [conformance suite](conformance.md) says about it. Each is a short file to read. A test
requires that the suite catches every one of them, by the rule that is named here, and that the same lock without
the mistake passes:

    go test -v -run 'TestFlawed|TestHealthy' ./conformance/flawed

This page is generated from such a run: ` + "`go test ./conformance/flawed -run TestPage -update`" + `. The reports are
shortened; times are in seconds since the case began.
`

// TestPage requires that the page tells what the collection holds today. The
// reports in it are those of the run that wrote it; what they say differs from run
// to run.
func TestPage(t *testing.T) {
	if *update {
		reports := map[string]string{}
		for i, f := range examine(t, All()) {
			l := All()[i]
			res, ok := f.report.Result(l.Rule)
			require.True(t, ok && res.Verdict == conformance.Fail, "%s was not caught by %s; nothing was written", l.Title, l.Rule)
			reports[l.File] = shorten(res.Evidence)
		}
		require.NoError(t, os.WriteFile(page, []byte(write(reports)), 0o644))
		return
	}
	old, err := os.ReadFile(page)
	require.NoError(t, err)
	reports := map[string]string{}
	for _, l := range All() {
		_, rest, ok := strings.Cut(string(old), "(../conformance/flawed/"+l.File+")")
		require.True(t, ok, "%s is not on the page: go test ./conformance/flawed -run TestPage -update", l.File)
		_, rest, _ = strings.Cut(rest, "```text\n")
		report, _, ok := strings.Cut(rest, "```\n")
		require.True(t, ok && strings.TrimSpace(report) != "", "the page has no report about %s", l.File)
		reports[l.File] = report
	}
	require.Equal(t, write(reports), string(old), "docs/flawed-locks.md is stale: go test ./conformance/flawed -run TestPage -update")
}

func write(reports map[string]string) string {
	statements := map[string]string{}
	for _, r := range conformance.Rules() {
		statements[r.Name] = r.Statement
	}
	var b strings.Builder
	b.WriteString(pageHead)
	for i, l := range All() {
		fmt.Fprintf(&b, "\n## %d. %s\n\n", i+1, upper(l.Title))
		fmt.Fprintf(&b, "%s\n\n", sentence(l.Summary))
		fmt.Fprintf(&b, "- **Seen:** %s\n", sentence(l.Seen))
		fmt.Fprintf(&b, "- **Instead:** %s\n", sentence(l.Instead))
		fmt.Fprintf(&b, "- **Caught by** `%s`: %s\n", l.Rule, statements[l.Rule])
		fmt.Fprintf(&b, "- **Source:** [%s](../conformance/flawed/%s), mistake %s\n\n", l.File, l.File, l.ID)
		fmt.Fprintf(&b, "```text\n%s```\n", reports[l.File])
	}
	return b.String()
}

func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// sentence begins with a capital letter, unless the first word is the name of a
// repository.
func sentence(s string) string {
	if first, _, _ := strings.Cut(s, " "); !strings.Contains(first, "/") {
		s = upper(s)
	}
	return strings.TrimRight(s, ".") + "."
}

// shorten keeps the first lines of a report, which have the first violation.
func shorten(evidence string) string {
	if dir, err := filepath.Abs("../.."); err == nil { // in the stacks of panics
		evidence = strings.ReplaceAll(evidence, dir+"/", "")
	}
	const most = 14
	lines := strings.Split(strings.TrimRight(evidence, "\n"), "\n")
	if len(lines) > most {
		lines = append(lines[:most], "...")
	}
	return strings.Join(lines, "\n") + "\n"
}
