package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mortiselock/lock/conformance"
)

// event is a line of go test -json.
type event struct {
	Time       time.Time
	Action     string
	Package    string
	ImportPath string // of what does not build
	Test       string
	Elapsed    float64
	Output     string
	run        int // of go test
}

// ends reports whether a package has ended.
func (ev event) ends() bool {
	return ev.Test == "" && (ev.Action == "pass" || ev.Action == "fail" || ev.Action == "skip")
}

const module = "github.com/mortiselock/lock"

// test is what is known of a test, or of a package as a whole.
type test struct {
	pkg, name string
	verdict   string // pass, fail or skip; empty while it runs
	seconds   float64
	output    []string
}

// summary collects events.
type summary struct {
	out     io.Writer
	begun   time.Time
	tests   map[place]*test
	labels  []string             // by run, behind the names of its packages
	running map[string]time.Time // packages
	began   map[string]time.Time // as running, of those that had to wait until there was room
	waits   bool                 // a package that starts waits until there is room
}

// place is that of a test; one without a name is of a package as a whole.
type place struct {
	run       int
	pkg, name string
}

func newSummary(out io.Writer) *summary {
	return &summary{out: out, begun: time.Now(), tests: map[place]*test{}, running: map[string]time.Time{}, began: map[string]time.Time{}}
}

func (s *summary) at(ev event) *test {
	pkg := cmp.Or(ev.Package, ev.ImportPath)
	at := place{ev.run, pkg, ev.Test}
	t := s.tests[at]
	if t == nil {
		t = &test{pkg: short(pkg), name: ev.Test}
		if ev.run < len(s.labels) {
			t.pkg += s.labels[ev.run]
		}
		s.tests[at] = t
	}
	return t
}

// short leaves out what all packages begin with.
func short(pkg string) string {
	pkg, _, _ = strings.Cut(pkg, " ") // what was built for which test
	if pkg == module {
		return "."
	}
	return strings.TrimPrefix(pkg, module+"/")
}

func (s *summary) add(ev event) {
	t := s.at(ev)
	switch ev.Action {
	case "start":
		if !s.waits {
			s.running[t.pkg] = time.Now()
		}
	case "output", "build-output":
		t.output = append(t.output, ev.Output)
	case "build-fail":
		fmt.Fprintf(s.out, "FAIL %s does not build\n%s", t.pkg, strings.Join(t.output, ""))
		t.verdict = "fail"
	case "pass", "fail", "skip":
		t.verdict, t.seconds = ev.Action, ev.Elapsed
		if begun, waited := s.began[t.pkg]; waited && t.name == "" {
			t.seconds = time.Since(begun).Seconds()
		}
		if t.name == "" {
			s.endPackage(t)
		}
	}
}

// begin notes that there was room for a package.
func (s *summary) begin(p place) {
	t := s.at(event{Package: strings.TrimSuffix(module+"/"+p.pkg, "/."), run: p.run})
	s.running[t.pkg], s.began[t.pkg] = time.Now(), time.Now()
}

// endPackage shows how a package has ended, and what its failed tests have said.
func (s *summary) endPackage(p *test) {
	delete(s.running, p.pkg)
	if p.verdict == "skip" {
		return // it has no tests
	}
	if p.verdict == "fail" {
		shown := false
		for _, t := range s.sorted() {
			// A test that never ended was cut off by a panic or by its time limit.
			if t.pkg == p.pkg && t.name != "" && (t.verdict == "fail" || t.verdict == "") {
				fmt.Fprint(s.out, strings.Join(t.output, ""))
				shown = true
			}
		}
		if !shown {
			fmt.Fprint(s.out, strings.Join(p.output, ""))
		}
	}
	fmt.Fprintf(s.out, "%-4s %-32s %6.1f s\n", map[string]string{"pass": "ok", "fail": "FAIL"}[p.verdict], p.pkg, p.seconds)
	s.progress()
}

// progress says which packages are running.
func (s *summary) progress() {
	if len(s.running) == 0 {
		return
	}
	var parts []string
	for _, pkg := range slices.Sorted(maps.Keys(s.running)) {
		parts = append(parts, fmt.Sprintf("%s (%d s)", pkg, int(time.Since(s.running[pkg]).Seconds())))
	}
	fmt.Fprintf(s.out, "     running: %s\n", strings.Join(parts, ", "))
}

func (s *summary) sorted() []*test {
	return slices.SortedFunc(maps.Values(s.tests), func(a, b *test) int {
		return cmp.Or(cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.name, b.name))
	})
}

var (
	frame   = regexp.MustCompile(`^\s*(=== |--- FAIL: )`) // what go test says of any test
	where   = regexp.MustCompile(`^\s*[\w./-]+\.go:\d+: `)
	verdict = regexp.MustCompile(`^(not claimed|skipped|inconclusive): `)
	again   = regexp.MustCompile(`: inconclusive with a TTL of \S+, trying again with \S+: `)
)

// said is the first line that a test has logged last: why it was skipped.
func (t *test) said() string {
	for _, line := range slices.Backward(t.output) {
		if where.MatchString(line) {
			return strings.TrimSpace(where.ReplaceAllString(line, ""))
		}
	}
	return "without a reason"
}

// outcome is that of a rule of the suite.
func (t *test) outcome() string {
	if t.verdict == "skip" {
		if m := verdict.FindStringSubmatch(t.said()); m != nil {
			return m[1]
		}
	}
	return cmp.Or(t.verdict, "cut off")
}

// end writes the summary.
func (s *summary) end() {
	counts := map[string]int{}
	left := map[string][]string{} // by reason
	var packages, undecided, failed []string
	unclaimed := 0
	var slowest []*test
	for _, t := range s.sorted() {
		switch {
		case t.name == "" && t.verdict != "skip":
			packages = append(packages, t.pkg)
			slowest = append(slowest, t)
			continue
		case t.name == "":
			continue
		}
		counts[t.verdict]++
		switch t.outcome() {
		case "fail", "cut off":
			failed = append(failed, t.pkg+" "+t.name)
		case "inconclusive":
			undecided = append(undecided, t.pkg+" "+t.name+": "+verdict.ReplaceAllString(t.said(), ""))
		case "not claimed":
			unclaimed++
		case "skip", "skipped":
			reason := verdict.ReplaceAllString(t.said(), "")
			left[reason] = append(left[reason], t.pkg+" "+t.name)
		}
	}
	fmt.Fprintf(s.out, "\n%d packages in %s: %d tests passed, %d failed, %d left out, %d of them since the lock does not claim what the rule is about\n",
		len(packages), time.Since(s.begun).Round(time.Second), counts["pass"], len(failed), counts["skip"]-len(undecided), unclaimed)
	slices.SortFunc(slowest, func(a, b *test) int { return cmp.Compare(b.seconds, a.seconds) })
	var parts []string
	for _, p := range slowest[:min(len(slowest), 6)] {
		parts = append(parts, fmt.Sprintf("%s %.0f s", p.pkg, p.seconds))
	}
	fmt.Fprintf(s.out, "slowest: %s\n", strings.Join(parts, ", "))
	if repeated := s.repeated(); len(repeated) > 0 {
		fmt.Fprintf(s.out, "repeated, since something was held up: %s\n", strings.Join(repeated, ", "))
	}
	if len(left) > 0 {
		fmt.Fprintln(s.out, "left out:")
	}
	for _, reason := range slices.Sorted(maps.Keys(left)) {
		fmt.Fprintf(s.out, "  %3d  %s (%s)\n", len(left[reason]), cut(reason, 140), cut(left[reason][0], 80))
	}
	if len(undecided) > 0 {
		fmt.Fprintf(s.out, "INCONCLUSIVE, neither kept nor broken: this machine was too slow for a judgement. Run these %d again when it is calmer:\n", len(undecided))
	}
	for _, line := range undecided {
		fmt.Fprintf(s.out, "  %s\n", line)
	}
	s.evidence()
	for _, name := range failed {
		fmt.Fprintf(s.out, "FAILED: %s\n", name)
	}
}

// repeated counts the attempts that were repeated, by package.
func (s *summary) repeated() (counts []string) {
	n := map[string]int{}
	for _, t := range s.tests {
		for _, line := range t.output {
			if again.MatchString(line) {
				n[t.pkg]++
			}
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(n)) {
		counts = append(counts, fmt.Sprintf("%s %d", pkg, n[pkg]))
	}
	return counts
}

// mostEvidence is how many lines of a failed test are shown again at the end.
const mostEvidence = 12

// evidence shows the first lines of what each failed test has said, once more: who reads
// a long log from its end, or has only its end, learns why.
func (s *summary) evidence() {
	for _, t := range s.sorted() {
		if o := t.outcome(); t.name == "" || o != "fail" && o != "cut off" {
			continue
		}
		lines := slices.DeleteFunc(slices.Clone(t.output), func(line string) bool {
			return frame.MatchString(line) || strings.TrimSpace(line) == ""
		})
		if len(lines) == 0 {
			continue
		}
		fmt.Fprintf(s.out, "\n%s %s:\n", t.pkg, t.name)
		for _, line := range lines[:min(len(lines), mostEvidence)] {
			fmt.Fprintln(s.out, cut(strings.TrimRight(line, "\n"), 300))
		}
	}
	fmt.Fprintln(s.out)
}

func cut(text string, most int) string {
	if len(text) > most {
		return text[:most] + "..."
	}
	return text
}

// outcomes lists the rules, the forms and the outcomes, sorted: the tests that are named
// after rules.
func (s *summary) outcomes() string {
	rules := map[string]bool{}
	for _, r := range conformance.Rules() {
		rules[r.Name] = true
	}
	var lines []string
	for _, t := range s.sorted() {
		form, rule, ok := cutLast(t.name)
		if ok && rules[rule] {
			lines = append(lines, fmt.Sprintf("%s\t%s %s\t%s\n", rule, t.pkg, form, t.outcome()))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

func cutLast(name string) (before, after string, ok bool) {
	i := strings.LastIndexByte(name, '/')
	if i < 0 {
		return name, "", false
	}
	return name[:i], name[i+1:], true
}
