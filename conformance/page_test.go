package conformance_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance"
)

var update = flag.Bool("update", false, "write the generated parts of docs/conformance.md")

const (
	page       = "../docs/conformance.md"
	pageBegins = "<!-- The rules are generated: go test ./conformance -run TestPage -update -->\n"
	pageEnds   = "<!-- end of the generated part -->\n"
)

// TestPage requires that the rules in docs/conformance.md are those of the suite.
func TestPage(t *testing.T) {
	old, err := os.ReadFile(page)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(old), pageBegins)
	require.True(t, ok, "the page has lost the mark of its generated part")
	_, after, ok := strings.Cut(rest, pageEnds)
	require.True(t, ok, "the page has lost the end of its generated part")
	want := before + pageBegins + "\n### By promise\n" + promiseTable() + ruleTables() + pageEnds + after
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(old), "docs/conformance.md is stale: go test ./conformance -run TestPage -update")
}

// ruleTables is a table of rules for each subject.
func ruleTables() string {
	var b strings.Builder
	subject := ""
	for _, r := range conformance.Rules() {
		if r.Subject != subject {
			subject = r.Subject
			fmt.Fprintf(&b, "\n### %s\n\n| Rule | Statement | Asked of |\n|---|---|---|\n", strings.ToUpper(subject[:1])+subject[1:])
		}
		asked := "every lock"
		if r.Seam {
			asked = "every backend"
		}
		if r.Claim != "" {
			asked = "who claims " + r.Claim
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", r.Name, strings.ReplaceAll(r.Statement, "|", "\\|"), asked)
	}
	fmt.Fprintf(&b, "\n%d rules.\n\n", len(conformance.Rules()))
	return b.String()
}
