// Package report writes the outcome of a run of the conformance suite for people:
// as Markdown, and as a single HTML page without anything outside of it.
package report

import (
	_ "embed" // the page
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/mortiselock/lock/conformance"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// order is that in which a reader wants to see the verdicts: what went wrong first.
var order = []conformance.Verdict{
	conformance.Fail, conformance.Inconclusive, conformance.Deviation, conformance.Pass, conformance.Unclaimed, conformance.NotClaimed, conformance.Skipped,
}

// HTML writes the page. It is complete in itself, and loads nothing.
func HTML(w io.Writer, r conformance.Report) error { return page.Execute(w, dataOf(r)) }

// Markdown writes the verdict, a table of the rules and the evidence of failures.
func Markdown(w io.Writer, r conformance.Report) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Conformance of %s\n\n**%s** %s. TTL %s, %.0f s, seed %d, %s.\n",
		cell(r.Name), cell(r.Verdict()), r.Counts(), r.TTL, r.Seconds, r.Seed, r.Started.UTC().Format(time.RFC3339))
	for _, x := range r.Results {
		if x.Verdict == conformance.Fail {
			fmt.Fprintf(&b, "\n## Broken: %s\n\n%s\n\n```text\n%s\n```\n", x.Rule, x.Statement, strings.ReplaceAll(x.Evidence, "```", "'''"))
		}
	}
	subject := ""
	for _, x := range r.Results {
		if x.Subject != subject {
			subject = x.Subject
			fmt.Fprintf(&b, "\n## %s\n\n| Verdict | Rule | Statement |\n|---|---|---|\n", title(subject))
		}
		statement := cell(x.Statement)
		if x.Verdict != conformance.Pass && x.Verdict != conformance.Fail && x.Evidence != "" {
			statement += " *(" + cell(firstLine(x.Evidence)) + ")*"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", x.Verdict, x.Rule, statement)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func cell(s string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ", "<", "&lt;").Replace(s)
}

func firstLine(s string) string {
	first, _, _ := strings.Cut(s, "\n")
	return first
}

func title(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// data is what the page shows.
type data struct {
	Name, Verdict, Started, TTL, Seed string
	Seconds                           int
	OK                                bool
	Facts                             []fact
	Tiles                             []tile
	Assumptions                       []string
	Broken                            []conformance.Result
	Subjects                          []subject
}

type tile struct {
	Verdict conformance.Verdict
	Count   int
}

// fact is something that the guarantees say.
type fact struct{ Name, Value string }

type subject struct {
	Title   string
	Passed  int
	Broken  int
	Results []result
}

type result struct {
	conformance.Result
	Class string
}

// Reason is why a rule was not tried, or is not counted, in one line.
func (r result) Reason() string {
	if r.Verdict == conformance.Pass || r.Verdict == conformance.Fail {
		return ""
	}
	return firstLine(r.Evidence)
}

// Time is how long the rule took, in the unit that fits.
func (r result) Time() string {
	switch s := r.Seconds; {
	case s < 0.001:
		return ""
	case s < 0.1:
		return fmt.Sprintf("%.0f ms", s*1000)
	default:
		return fmt.Sprintf("%.1f s", s)
	}
}

// factsOf are what a reader compares locks by.
func factsOf(r conformance.Report) []fact {
	g, reach := r.Guarantees, string(r.Guarantees.Reach)
	if slices.ContainsFunc(r.UntriedClaims(), func(c conformance.UntriedClaim) bool { return c.Claim == conformance.ClaimReach }) {
		reach += " (claimed, not tried)"
	}
	var out []fact
	for _, f := range []fact{
		{"Excludes within", reach}, {"Expiry is on the clock of", string(g.Expiry)}, {"Fencing token", string(g.Token)},
		{"Waiting", string(g.Waiting)},
	} {
		if f.Value != "" {
			out = append(out, f)
		}
	}
	return out
}

// classes are the verdicts as names of styles.
var classes = map[conformance.Verdict]string{
	conformance.Pass: "pass", conformance.Fail: "fail", conformance.NotClaimed: "not",
	conformance.Unclaimed: "more", conformance.Inconclusive: "open", conformance.Skipped: "skip", conformance.Deviation: "off",
}

// Class is the verdict as the name of a style.
func (t tile) Class() string { return classes[t.Verdict] }

func dataOf(r conformance.Report) data {
	d := data{
		Name: r.Name, Verdict: r.Verdict(), OK: r.OK(), Seconds: int(r.Seconds + 0.5), TTL: r.TTL.String(),
		Started: r.Started.UTC().Format("2 Jan 2006, 15:04 MST"), Seed: fmt.Sprint(r.Seed),
		Assumptions: r.Guarantees.Assumptions, Facts: factsOf(r),
	}
	n := map[conformance.Verdict]int{}
	for _, x := range r.Results {
		n[x.Verdict]++
		if x.Verdict == conformance.Fail {
			d.Broken = append(d.Broken, x)
		}
		at := slices.IndexFunc(d.Subjects, func(s subject) bool { return s.Title == title(x.Subject) })
		if at < 0 {
			at = len(d.Subjects)
			d.Subjects = append(d.Subjects, subject{Title: title(x.Subject)})
		}
		s := &d.Subjects[at]
		s.Results = append(s.Results, result{x, classes[x.Verdict]})
		switch x.Verdict {
		case conformance.Pass:
			s.Passed++
		case conformance.Fail:
			s.Broken++
		}
	}
	for _, v := range order {
		if n[v] > 0 || v == conformance.Fail {
			d.Tiles = append(d.Tiles, tile{v, n[v]})
		}
	}
	return d
}
