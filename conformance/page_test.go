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
	if r.NeedsBackend {
		of = append(of, "backends")
	}
	if r.Claim != "" {
		of = append(of, strings.Split(r.Claim, ", ")...)
	}
	return of
}

// ruleLists names the rules of each subject. Their sentences are in reports.
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
			fmt.Fprintf(&b, "All of *%s*.\n\n", strings.Join(all, ", "))
		}
		byAsked, asked := map[string][]string{}, []string(nil)
		for _, r := range rules {
			of := slices.DeleteFunc(askedOf(r), func(of string) bool { return slices.Contains(all, of) })
			which := strings.Join(of, ", ")
			if byAsked[which] == nil {
				asked = append(asked, which)
			}
			byAsked[which] = append(byAsked[which], r.Name)
		}
		slices.SortStableFunc(asked, func(a, b string) int { return len(a) - len(b) })
		for _, which := range asked {
			names := strings.Join(byAsked[which], ", ")
			if which != "" {
				names = fmt.Sprintf("*%s*: %s", which, names)
			}
			fmt.Fprintf(&b, "- %s\n", names)
		}
	}
	fmt.Fprintf(&b, "\n%d rules.\n\n", len(conformance.Rules()))
	return b.String()
}
