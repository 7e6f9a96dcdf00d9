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
	conformance.Fail, conformance.Pass, conformance.Unclaimed, conformance.NotClaimed, conformance.Skipped,
}

// Verdict is the outcome in one sentence.
func Verdict(r conformance.Report) string {
	c := r.Counts()
	switch {
	case r.Incomplete != "" && c.Fail > 0:
		return fmt.Sprintf("Incomplete: %s. Before that: %s", r.Incomplete, broken(c.Fail))
	case r.Incomplete != "":
		return fmt.Sprintf("Incomplete: %s. What was not tried by then says nothing.", r.Incomplete)
	case c.Fail > 0:
		return broken(c.Fail)
	case c.Pass == 0:
		return "Nothing was proved: no rule could be tried."
	}
	return "Every claim that could be tried was kept."
}

func broken(n int) string {
	if n == 1 {
		return "1 rule was broken."
	}
	return fmt.Sprintf("%d rules were broken.", n)
}

// HTML writes the page. It is complete in itself, and loads nothing.
func HTML(w io.Writer, r conformance.Report) error { return page.Execute(w, dataOf(r)) }

// Markdown writes the verdict, a table of the rules and the evidence of failures.
func Markdown(w io.Writer, r conformance.Report) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Conformance of %s\n\n**%s** %s. TTL %s, %.0f s, seed %d, %s.\n",
		cell(r.Name), cell(Verdict(r)), r.Counts(), r.TTL, r.Seconds, r.Seed, r.Started.UTC().Format(time.RFC3339))
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
	Tiles                             []tile
	Assumptions                       []string
	Broken                            []conformance.Result
	Subjects                          []subject
}

type tile struct {
	Verdict conformance.Verdict
	Count   int
}

type subject struct {
	Title   string
	Passed  int
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

// classes are the verdicts as names of styles.
var classes = map[conformance.Verdict]string{
	conformance.Pass: "pass", conformance.Fail: "fail", conformance.NotClaimed: "not",
	conformance.Unclaimed: "more", conformance.Skipped: "skip",
}

// Class is the verdict as the name of a style.
func (t tile) Class() string { return classes[t.Verdict] }

func dataOf(r conformance.Report) data {
	d := data{
		Name: r.Name, Verdict: Verdict(r), OK: r.OK(), Seconds: int(r.Seconds + 0.5), TTL: r.TTL.String(),
		Started: r.Started.UTC().Format("2 Jan 2006, 15:04 MST"), Seed: fmt.Sprint(r.Seed),
		Assumptions: r.Guarantees.Assumptions,
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
		if x.Verdict == conformance.Pass {
			s.Passed++
		}
	}
	for _, v := range order {
		if n[v] > 0 || v == conformance.Fail {
			d.Tiles = append(d.Tiles, tile{v, n[v]})
		}
	}
	return d
}
