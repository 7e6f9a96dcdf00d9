package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/mortiselock/lock/conformance"
)

// progress is the line that a check shows while it runs: rewritten in place on a
// terminal, a line now and then elsewhere. Broken rules get a line that stays.
type progress struct {
	w        io.Writer
	terminal bool
	total    int // zero: unknown
	begun    time.Time
	last     time.Time
	counts   conformance.Counts
	width    int
}

// quietly is how often a line is written where it cannot be rewritten.
const quietly = 10 * time.Second

func newProgress(w io.Writer, total int) *progress {
	p := &progress{w: w, total: total, begun: time.Now(), last: time.Now()}
	if f, ok := w.(*os.File); ok {
		info, err := f.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

// show counts a result. The suite calls it for one result at a time.
func (p *progress) show(r conformance.Result) {
	done := func() int {
		c := p.counts
		return c.Pass + c.Fail + c.NotClaimed + c.Unclaimed + c.Inconclusive + c.Skipped
	}
	switch r.Verdict {
	case conformance.Pass:
		p.counts.Pass++
	case conformance.Fail:
		p.counts.Fail++
	case conformance.NotClaimed:
		p.counts.NotClaimed++
	case conformance.Unclaimed:
		p.counts.Unclaimed++
	case conformance.Inconclusive:
		p.counts.Inconclusive++
	case conformance.Skipped:
		p.counts.Skipped++
	}
	if r.Verdict == conformance.Fail {
		p.clear()
		fmt.Fprintf(p.w, "lockctl: broken: %s: %s\n", r.Rule, r.Statement)
	}
	line := fmt.Sprintf("%d", done())
	if p.total > 0 {
		line += fmt.Sprintf(" of %d", p.total)
	}
	line += fmt.Sprintf(" rules, %d broken, %s", p.counts.Fail, time.Since(p.begun).Round(time.Second))
	switch {
	case p.terminal:
		p.clear()
		p.width = len(line)
		fmt.Fprint(p.w, line)
	case time.Since(p.last) >= quietly:
		p.last = time.Now()
		fmt.Fprintf(p.w, "lockctl: %s\n", line)
	}
}

func (p *progress) clear() {
	if p.terminal && p.width > 0 {
		fmt.Fprintf(p.w, "\r%s\r", strings.Repeat(" ", p.width))
		p.width = 0
	}
}

// end removes the line.
func (p *progress) end() { p.clear() }
