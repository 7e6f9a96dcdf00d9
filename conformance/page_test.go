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

const page = "../docs/conformance.md"

// TestPage requires that the generated parts of docs/conformance.md are up to date.
func TestPage(t *testing.T) {
	old, err := os.ReadFile(page)
	require.NoError(t, err)
	want := string(old)
	for name, text := range map[string]string{"rules": ruleTables() + testedElsewhere(t), "hooks": hookTable()} {
		begins := fmt.Sprintf("<!-- The %s are generated: go test ./conformance -run TestPage -update -->\n", name)
		ends := fmt.Sprintf("<!-- end of the %s -->\n", name)
		before, rest, ok := strings.Cut(want, begins)
		require.True(t, ok, "the page has lost the mark of its %s", name)
		_, after, ok := strings.Cut(rest, ends)
		require.True(t, ok, "the page has lost the end of its %s", name)
		want = before + begins + text + ends + after
	}
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
		asked := "all"
		if r.Seam {
			asked = "backends"
		}
		if r.Claim != "" {
			asked = r.Claim
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", r.Name, strings.ReplaceAll(r.Statement, "|", "\\|"), asked)
	}
	fmt.Fprintf(&b, "\n%d rules.\n\n", len(conformance.Rules()))
	return b.String()
}
