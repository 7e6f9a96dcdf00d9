package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// A figure is what is seen of a contender in one round.
type figure int

const (
	rate figure = iota
	p50
	p99
	longest
	allocations
	processor
	commands
	goroutines
	sockets
	memory
	keeping
	latest
	figures // how many there are
)

// seen has the figures of a round. What was not measured is NaN.
type seen [figures]float64

func unseen() seen {
	var s seen
	for i := range s {
		s[i] = math.NaN()
	}
	return s
}

// forms say how a figure is called where an aim is meant, and written.
var forms = [figures]struct {
	name  string
	write func(x float64) string
}{
	rate:        {"rate", digits},
	p50:         {"p50", milliseconds},
	p99:         {"p99", milliseconds},
	longest:     {"longest wait", digits},
	allocations: {"allocations", whole},
	processor:   {"processor µs", digits},
	commands:    {"commands", digits},
	goroutines:  {"goroutines", whole},
	sockets:     {"connections", whole},
	memory:      {"KB per lease", func(x float64) string { return digits(max(x, 0)) }}, // who holds little frees more
	keeping:     {"processor µs per lease", digits},
	latest:      {"latest renewal", digits},
}

func (f figure) format(x float64) string {
	if math.IsNaN(x) {
		return ""
	}
	return forms[f].write(x)
}

// digits writes two digits at least.
func digits(x float64) string {
	switch size := math.Abs(x); {
	case size >= 1000:
		return thousands(int(math.Round(x)))
	case size >= 10:
		return fmt.Sprintf("%.0f", x)
	case size >= 1:
		return fmt.Sprintf("%.1f", x)
	default:
		return fmt.Sprintf("%.2f", x)
	}
}

func whole(x float64) string { return thousands(int(math.Round(x))) }

func milliseconds(seconds float64) string {
	switch ms := seconds * 1e3; {
	case ms < 0.01:
		return fmt.Sprintf("%.4f", ms)
	case ms < 1:
		return fmt.Sprintf("%.3f", ms)
	default:
		return digits(ms)
	}
}

func thousands(n int) string {
	s := fmt.Sprint(n)
	for at := len(s) - 3; at > 0 && s[at-1] != '-'; at -= 3 {
		s = s[:at] + "," + s[at:]
	}
	return s
}

// A cell is what is measured for some rounds.
type cell struct {
	store, scenario string
	size            int // of the scenarios that grow
	contender       string
}

// results are the rounds of each cell. A contender that failed has a word instead.
type results struct {
	rounds map[cell][]seen
	failed map[cell]string
}

func newResults() *results {
	return &results{rounds: map[cell][]seen{}, failed: map[cell]string{}}
}

// each is a figure of every round.
func (r *results) each(c cell, f figure) []float64 {
	var xs []float64
	for _, s := range r.rounds[c] {
		xs = append(xs, s[f])
	}
	return xs
}

// median is that of the rounds; NaN where there is none.
func (r *results) median(c cell, f figure) float64 { return median(r.each(c, f)) }

func median(xs []float64) float64 {
	s := slices.DeleteFunc(slices.Clone(xs), math.IsNaN)
	if len(s) == 0 {
		return math.NaN()
	}
	slices.Sort(s)
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// spread is the smallest and the largest figure.
func spread(xs []float64) (lo, hi float64) { return slices.Min(xs), slices.Max(xs) }

// best is the largest figure of the peers in each round.
func (r *results) best(st *store, c cell, f figure) []float64 {
	var most []float64
	for i := range st.contenders {
		if st.contenders[i].kind != peer {
			continue
		}
		c.contender = st.contenders[i].name
		for n, x := range r.each(c, f) {
			if n == len(most) {
				most = append(most, x)
			}
			most[n] = max(most[n], x)
		}
	}
	return most
}

// to compares figures of the same rounds.
func to(xs, base []float64, more bool) []float64 {
	rounds := make([]float64, min(len(xs), len(base)))
	for i := range rounds {
		if rounds[i] = xs[i] / base[i]; more {
			rounds[i] = xs[i] - base[i]
		}
	}
	return rounds
}

// A goal is what is aimed at. A bound that is zero is none.
type goal struct{ atLeast, atMost float64 }

func (g goal) String() string {
	var bounds []string
	if g.atLeast != 0 {
		bounds = append(bounds, fmt.Sprintf("at least %g", g.atLeast))
	}
	if g.atMost != 0 {
		bounds = append(bounds, fmt.Sprintf("at most %g", g.atMost))
	}
	return strings.Join(bounds, ", ")
}

func (g goal) reached(x float64) bool {
	return (g.atLeast == 0 || x >= g.atLeast) && (g.atMost == 0 || x <= g.atMost)
}

// of is what was seen of an aim, round by round.
func (r *results) of(st *store, c *contender, a aim) []float64 {
	at := cell{store: st.name, scenario: a.scenario, size: a.size, contender: c.name}
	ours := r.each(at, a.figure)
	if a.than != 0 {
		at.size = a.than
		return to(ours, r.each(at, a.figure), a.more)
	}
	switch a.against {
	case "":
		return ours
	case bestPeer:
		return to(ours, r.best(st, at, a.figure), a.more)
	default:
		at.contender = a.against
		return to(ours, r.each(at, a.figure), a.more)
	}
}
