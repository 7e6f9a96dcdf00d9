package conformance_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
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
	for name, text := range map[string]string{"rules": ruleLists() + testedElsewhere(), "hooks": hookTable()} {
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
	if want != string(old) { // to show the pages helps nobody
		t.Error("docs/conformance.md is stale: go test ./conformance -run TestPage -update")
	}
}

// askedOf says of which locks a rule is asked, if not of all.
func askedOf(r conformance.Rule) (of []string) {
	if r.Seam {
		of = append(of, "backends")
	}
	if r.Claim != "" {
		of = append(of, strings.Split(r.Claim, ", ")...)
	}
	return of
}

// ruleLists is a list of rules for each subject.
func ruleLists() string {
	var b strings.Builder
	bySubject, subjects := map[string][]conformance.Rule{}, []string(nil)
	for _, r := range conformance.Rules() {
		if bySubject[r.Subject] == nil {
			subjects = append(subjects, r.Subject)
		}
		bySubject[r.Subject] = append(bySubject[r.Subject], r)
	}
	for _, subject := range subjects {
		fmt.Fprintf(&b, "\n### %s\n\n", strings.ToUpper(subject[:1])+subject[1:])
		rules := bySubject[subject]
		all := askedOf(rules[0])
		for _, r := range rules {
			all = slices.DeleteFunc(all, func(of string) bool { return !slices.Contains(askedOf(r), of) })
		}
		if len(all) > 0 {
			fmt.Fprintf(&b, "All *(%s)*.\n\n", strings.Join(all, ", "))
		}
		for _, r := range rules {
			asked := ""
			of := slices.DeleteFunc(askedOf(r), func(of string) bool { return slices.Contains(all, of) })
			if len(of) > 0 {
				asked = fmt.Sprintf(" *(%s)*", strings.Join(of, ", "))
			}
			fmt.Fprintf(&b, "- **%s**: %s%s\n", r.Name, r.Statement, asked)
		}
	}
	fmt.Fprintf(&b, "\n%d rules.\n\n", len(conformance.Rules()))
	return b.String()
}
