package main

import (
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var ofOneRun = regexp.MustCompile(regexp.QuoteMeta(runBegin) + ".*?" + regexp.QuoteMeta(runEnd))

// shape is a page without what is of one run: figures, verdicts, and how they were made.
func shape(page string) []string {
	var lines []string
	from := 0 // column from which on the table has figures; 0, it has none
	for line := range strings.SplitSeq(ofOneRun.ReplaceAllString(page, ""), "\n") {
		cells := strings.Split(line, " | ")
		switch {
		case !strings.HasPrefix(line, "|"):
			from = 0
		case strings.HasPrefix(line, "| "+lockHead+" |"):
			from = 1
		case strings.HasPrefix(line, "| "+aimHead+" |"):
			from = 4
		case from > 0 && len(cells) > from:
			line = strings.Join(cells[:from], " | ")
		}
		lines = append(lines, line)
	}
	return lines
}

// The page has every contender, scenario and aim of the tool, and nothing else.
func TestPage(t *testing.T) {
	t.Parallel()
	docs, err := docsDir()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(docs, "performance.md"))
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{results: newResults()}
	is, should := shape(string(text)), shape(b.page(""))
	for i := range max(len(is), len(should)) {
		if i >= len(is) || i >= len(should) || is[i] != should[i] {
			t.Fatalf("docs/performance.md differs from what the tool writes; run make bench BENCH=-update.\nline %d: %q\nexpected: %q",
				i+1, at(is, i), at(should, i))
		}
	}
	for _, st := range stores {
		for _, sc := range scenarios {
			if sc.sizes == nil || len(st.in(sc)) == 0 {
				continue
			}
			svg, err := os.ReadFile(filepath.Join(docs, filepath.FromSlash(plotFile(st, sc))))
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range st.in(sc) {
				if !strings.Contains(string(svg), ">"+c.name+"<") {
					t.Errorf("%s does not say %q", plotFile(st, sc), c.name)
				}
			}
		}
	}
}

// A panel can be drawn whatever its figures are, as long as they can be seen.
func TestPlotOfWhatDoesNotGrow(t *testing.T) {
	t.Parallel()
	for _, st := range stores {
		for _, sc := range scenarios {
			if sc.sizes == nil || len(st.in(sc)) == 0 {
				continue
			}
			for _, value := range []float64{math.NaN(), -1, 0, 1, 10, 12} {
				b := &bench{results: newResults()}
				for _, c := range st.in(sc) {
					for _, size := range sc.sizes {
						f := unseen()
						for _, column := range sc.columns {
							f[column] = value
						}
						at := cell{store: st.name, scenario: sc.name, size: size, contender: c.name}
						b.results.rounds[at] = append(b.results.rounds[at], f)
					}
				}
				if err := b.plot(st, sc, filepath.Join(t.TempDir(), "plot.svg")); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(the end)"
}

// Each aim that was missed has a section that says why.
func TestMissedAimsAreExplained(t *testing.T) {
	t.Parallel()
	docs, err := docsDir()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(docs, "performance.md"))
	if err != nil {
		t.Fatal(err)
	}
	why, err := os.ReadFile(filepath.Join(docs, "design", "speed.md"))
	if err != nil {
		t.Fatal(err)
	}
	missed := 0
	for line := range strings.SplitSeq(string(page), "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if cells[len(cells)-1] != "missed" {
			continue
		}
		missed++
		contender, _, _ := strings.Cut(cells[0], ", ")
		contender = strings.TrimSuffix(contender, ",")
		scenario, _, _ := strings.Cut(cells[1], ",")
		if !slices.ContainsFunc(strings.Split(string(why), "\n"), func(heading string) bool {
			_, of, ok := strings.Cut(heading, contender)
			return ok && strings.HasPrefix(heading, "## ") && strings.Contains(of, scenario)
		}) {
			t.Errorf("docs/design/speed.md has no section on %s, %s, which was missed", contender, scenario)
		}
	}
	t.Logf("%d aims were missed", missed)
}

// What the tables name has to be there.
func TestNames(t *testing.T) {
	t.Parallel()
	known := map[string]bool{serial: true, parallel: true, contended: true, waiters: true, crowd: true, held: true}
	for _, st := range stores {
		names := map[string]bool{}
		for _, c := range st.contenders {
			if names[c.name] {
				t.Errorf("%s has two contenders %q", st.name, c.name)
			}
			names[c.name] = true
			for scenario := range c.not {
				if !known[scenario] {
					t.Errorf("%s: no scenario is called %q", c.name, scenario)
				}
			}
			for scenario := range c.most {
				if scenario != waiters && scenario != crowd && scenario != held {
					t.Errorf("%s: nothing grows in %q", c.name, scenario)
				}
			}
		}
		for _, c := range st.contenders {
			if c.against != "" && !names[c.against] {
				t.Errorf("%s: no contender is called %q", c.name, c.against)
			}
			for _, a := range c.aims {
				if a.against != "" && a.against != bestPeer && !names[a.against] {
					t.Errorf("%s: no contender is called %q", c.name, a.against)
				}
				if !known[a.scenario] || a.goal == (goal{}) {
					t.Errorf("%s has an aim without a scenario or a bound: %+v", c.name, a)
				}
			}
		}
	}
}

// A ratio is that of neighbours, and the best peer is another one in each round.
func TestRatios(t *testing.T) {
	t.Parallel()
	st := &store{name: "s", contenders: []contender{{name: "a", kind: peer}, {name: "b", kind: peer}, {name: "ours", kind: own}}}
	r := newResults()
	saw := func(name string, rates ...float64) {
		for _, x := range rates {
			f := unseen()
			f[rate] = x
			c := cell{store: "s", scenario: serial, contender: name}
			r.rounds[c] = append(r.rounds[c], f)
		}
	}
	saw("a", 100, 10, 100)
	saw("b", 10, 200, 50)
	saw("ours", 200, 100, 100)
	ours := &st.contenders[2]
	for against, want := range map[string][]float64{bestPeer: {2, 0.5, 1}, "a": {2, 10, 1}, "": {200, 100, 100}} {
		got := r.of(st, ours, aim{scenario: serial, against: against})
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("against %q: %v, expected %v", against, got, want)
				break
			}
		}
	}
	if got := r.of(st, ours, aim{scenario: serial, against: "a", more: true}); got[1] != 90 {
		t.Errorf("the difference is %v", got)
	}
	if m := median([]float64{3, 1, 2}); m != 2 {
		t.Errorf("the median is %v", m)
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"1,234,567": digits(1234567.2), "999": digits(999), "12": digits(12.3), "1.2": digits(1.24), "0.12": digits(0.123),
		"-1,000": thousands(-1000), "-100": thousands(-100), "0.0001": milliseconds(1e-7), "0.123": milliseconds(0.000123),
		"": rate.format(unseen()[rate]),
	} {
		if got != want {
			t.Errorf("%q, expected %q", got, want)
		}
	}
}
