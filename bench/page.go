package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// A table has a heading and rows. The first column is text, and so are those in front of
// number.
type table struct {
	number int // column from which on there are numbers
	rows   [][]string
}

// text is the table for a terminal.
func (t table) text() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range t.rows {
		_, _ = fmt.Fprintln(w, "  "+strings.Join(row, "\t"))
	}
	_ = w.Flush()
	return b.String()
}

// markdown is the table for the page.
func (t table) markdown() string {
	var b strings.Builder
	for i, row := range t.rows {
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
		if i == 0 {
			b.WriteString("|" + strings.Repeat("---|", min(t.number, len(row))) + strings.Repeat("--:|", max(len(row)-t.number, 0)) + "\n")
		}
	}
	return b.String()
}

// without is the table without the columns of these headings.
func (t table) without(heads ...string) table {
	less := table{number: t.number}
	for _, row := range t.rows {
		var cells []string
		for i, text := range row {
			if !slices.Contains(heads, t.rows[0][i]) {
				cells = append(cells, text)
			}
		}
		less.rows = append(less.rows, cells)
	}
	return less
}

// offPage are the headings of the columns that the page leaves to the terminal and to the
// plots: medians, beside which p99 and the longest wait say more; commands in parallel, which
// are those in series; and sizes that are drawn.
func (sc *scenario) offPage() []string {
	heads := []string{heads[p50]}
	if sc.name == parallel {
		heads = append(heads, sc.head(commands))
	}
	for _, size := range sc.plotted {
		heads = append(heads, sc.sizeHead(size))
	}
	return heads
}

// heads are the headings of the figures, with their units.
var heads = [figures]string{
	p50: "p50 ms", p99: "p99 ms", longest: "longest, in fair shares", allocations: "allocations",
	processor: "processor µs", commands: "commands", goroutines: "goroutines", memory: "KB", keeping: "processor µs",
	sockets: "connections", latest: "latest renewal",
}

func (sc *scenario) head(f figure) string {
	if f == rate {
		return sc.rate
	}
	return heads[f]
}

// sizeHead is the heading of a size.
func (sc *scenario) sizeHead(size int) string {
	unit := sc.unit[1]
	if size == 1 {
		unit = sc.unit[0]
	}
	return thousands(size) + " " + unit
}

// lockHead is the first heading of tables with figures.
const lockHead = "Lock"

// table is that of a scenario.
func (b *bench) table(st *store, sc *scenario) table {
	if sc.sizes != nil {
		return b.growth(st, sc)
	}
	head := []string{lockHead, sc.head(rate)}
	bares, peers := st.has(sc, bare), st.has(sc, peer)
	if bares {
		head = append(head, "of the bare commands")
	}
	if peers {
		head = append(head, "of the best peer")
	}
	for _, f := range sc.columns[1:] {
		head = append(head, sc.head(f))
	}
	t := table{number: 1, rows: [][]string{head}}
	for _, c := range st.in(sc) {
		at := cell{store: st.name, scenario: sc.name, contender: c.name}
		row := []string{c.name, rate.format(b.median(at, rate))}
		if b.failed[at] != "" {
			row[1] = b.failed[at]
		}
		if bares {
			base := at
			base.contender = st.baseOf(c)
			row = append(row, ratio(to(b.each(at, rate), b.each(base, rate), false)))
		}
		if peers {
			row = append(row, ratio(to(b.each(at, rate), b.best(st, at, rate), false)))
		}
		for _, f := range sc.columns[1:] {
			row = append(row, f.format(b.median(at, f)))
		}
		t.rows = append(t.rows, row)
	}
	return t
}

func ratio(xs []float64) string {
	if x := median(xs); !math.IsNaN(x) {
		return fmt.Sprintf("%.2f", x)
	}
	return ""
}

// growth is the table of a scenario with sizes: all columns in one cell.
func (b *bench) growth(st *store, sc *scenario) table {
	head := []string{lockHead}
	for _, size := range sc.sizes {
		head = append(head, sc.sizeHead(size))
	}
	t := table{number: 1, rows: [][]string{head}}
	for _, c := range st.in(sc) {
		row := []string{c.name}
		for _, size := range sc.sizes {
			at := cell{store: st.name, scenario: sc.name, size: size, contender: c.name}
			var parts []string
			for _, f := range sc.columns {
				if text := f.format(b.median(at, f)); text != "" {
					parts = append(parts, text)
				}
			}
			text := strings.Join(parts, " / ")
			switch {
			case !c.takesPart(sc, size):
				text = "-"
			case b.failed[at] != "":
				text = b.failed[at]
			}
			row = append(row, text)
		}
		t.rows = append(t.rows, row)
	}
	return t
}

// aimHead is the first heading of the table of aims.
const aimHead = "Aim"

// aimsTable has every aim of the stores in the scenarios.
func (b *bench) aimsTable(sts []*store, scs []*scenario) table {
	t := table{number: 4, rows: [][]string{{aimHead, "scenario", "compared with", "to be", "is", ""}}}
	for _, st := range sts {
		for i := range st.contenders {
			c := &st.contenders[i]
			for _, a := range c.aims {
				if slices.ContainsFunc(scs, func(sc *scenario) bool { return sc.name == a.scenario }) {
					t.rows = append(t.rows, b.aimRow(st, c, a))
				}
			}
		}
	}
	return t
}

func (b *bench) aimRow(st *store, c *contender, a aim) []string {
	what := c.name
	if a.figure != rate {
		what += ", " + forms[a.figure].name
	}
	bound := a.goal.String()
	if a.more {
		bound += " more"
	}
	is, verdict := "", ""
	if xs := b.of(st, c, a); !math.IsNaN(median(xs)) {
		lo, hi := spread(xs)
		is, verdict = fmt.Sprintf("%.2f", median(xs)), "missed"
		if a.goal.reached(median(xs)) {
			verdict = "reached"
		} else if rounded, _ := strconv.ParseFloat(is, 64); a.goal.reached(rounded) {
			is = fmt.Sprintf("%.4f", median(xs))
		}
		is += fmt.Sprintf(" (%.2f to %.2f)", lo, hi)
	}
	scenario, against := a.scenario, a.against
	if a.size != 0 {
		scenario += ", " + thousands(a.size)
	}
	switch {
	case a.than != 0:
		against = "the same with " + thousands(a.than)
	case against == "" && a.figure == longest:
		against = "the fair share"
	}
	return []string{what, scenario, against, bound, is, verdict}
}

// The marks around what is of one run in the text of the page.
const (
	runBegin = "<!-- run -->"
	runEnd   = "<!-- /run -->"
)

// page is docs/performance.md.
func (b *bench) page(made string) string {
	var p strings.Builder
	p.WriteString(`<!-- Generated: make bench BENCH=-update -->
# Performance

Locks as their users call them, side by side on the same servers in one run of [bench](../bench): bare commands, other
[libraries](peers.md), and this one, opened by URL. **Compare ratios, not numbers**: clients and servers share one
machine, and a real network is slower. A ratio is that of neighbours in the same round, and every figure is the median
of the rounds.

| Scenario | |
|---|---|
`)
	for _, sc := range scenarios {
		fmt.Fprintf(&p, "| %s | %s |\n", sc.name, sc.about)
	}
	p.WriteString(`
Contexts can be cancelled. Holds have a TTL of 15 s where nothing else is said.

| Column | |
|---|---|
| p99 | of a pair of acquire and release; under contention, of the wait |
| longest | the longest wait, also of who waits at the end; the fair share is one turn of everybody else |
| allocations, processor | of the clients, for a pair or a grant; up to two allocations are the tool's |
| commands | requests that the server has counted, for a pair or a grant; in parallel about as in series |

A cell of waiters or crowd is grants per second / commands per grant. A cell of held is goroutines / connections / KB of
heap and stacks per lease / µs of processor time per lease in each TTL. Ours have one figure more: how much of a TTL had
passed before the latest renewal. Held is of one round, unless an aim compares it. A dash was not tried. The plots have
further sizes.

    make bench                                                  # everything, in a quarter of an hour; installs the servers
    go -C bench run . -backend redis -scenario serial           # some of it
    go -C bench run . -list                                     # what there is

## Aims

`)
	fmt.Fprintf(&p, "%s%s%s\n\n", runBegin, made, runEnd)
	p.WriteString("Ratios of rates, unless something else is said; in brackets the smallest and the largest.\n" +
		"[Where the time goes](design/speed.md) says why aims are missed.\n\n")
	p.WriteString(b.aimsTable(stores, scenarios).markdown())
	for _, st := range stores {
		b.section(&p, st)
	}
	return p.String()
}

// section is what the page has of a store.
func (b *bench) section(p *strings.Builder, st *store) {
	fmt.Fprintf(p, "\n## %s\n\n%s\n\n| | How it is called |\n|---|---|\n", st.title, st.about)
	for _, c := range st.contenders {
		fmt.Fprintf(p, "| %s | %s |\n", c.name, c.how)
	}
	for _, sc := range scenarios {
		if len(st.in(sc)) == 0 {
			continue
		}
		fmt.Fprintf(p, "\n### %s: %s\n\n%s", st.title, sc.name, b.table(st, sc).without(sc.offPage()...).markdown())
		var without []string
		for _, c := range st.contenders {
			if why := c.not[sc.name]; why != "" {
				without = append(without, c.name+" ("+why+")")
			}
		}
		if without != nil {
			fmt.Fprintf(p, "\nNot here: %s.\n", strings.Join(without, ", "))
		}
		if sc.sizes != nil {
			fmt.Fprintf(p, "\n![%s: %s](%s)\n", st.title, sc.name, plotFile(st, sc))
		}
	}
}

// plotFile is relative to the page.
func plotFile(st *store, sc *scenario) string {
	return "performance/" + st.name + "-" + sc.name + ".svg"
}

// write writes the page and its plots.
func (b *bench) write(docs string) error {
	if err := os.MkdirAll(filepath.Join(docs, "performance"), 0o755); err != nil {
		return err
	}
	for _, st := range stores {
		for _, sc := range scenarios {
			if sc.sizes == nil || len(st.in(sc)) == 0 {
				continue
			}
			if err := b.plot(st, sc, filepath.Join(docs, filepath.FromSlash(plotFile(st, sc)))); err != nil {
				return err
			}
		}
	}
	return os.WriteFile(filepath.Join(docs, "performance.md"), []byte(b.page(b.made())), 0o644)
}
