package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/mortiselock/lock/conformance"
)

// progress is the line that a check shows while it runs: rewritten in place on a
// terminal, with a bar and an estimate of what is left; a line now and then elsewhere.
// Broken rules get a line that stays.
type progress struct {
	w        io.Writer
	terminal bool
	columns  int // of the terminal; zero: unknown
	total    int
	begun    time.Time
	stop     chan struct{} // of a terminal, as stopped
	stopped  chan struct{}

	mu     sync.Mutex
	last   time.Time
	counts conformance.Counts
	width  int // of the line that is shown
}

// quietly is how often a line is written where it cannot be rewritten.
const quietly = 10 * time.Second

// newProgress begins to show the progress of so many rules. end ends it.
func newProgress(w io.Writer, total int) *progress {
	if f, ok := w.(*os.File); ok {
		if n, ok := columns(f); ok {
			return progressOn(w, n, total)
		}
	}
	now := time.Now()
	return &progress{w: w, total: total, begun: now, last: now}
}

// progressOn is newProgress on a terminal.
func progressOn(w io.Writer, columns, total int) *progress {
	now := time.Now()
	p := &progress{
		w: w, terminal: true, columns: columns, total: total, begun: now, last: now,
		stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	go p.tick()
	return p
}

// tick lets the time go on while no rule ends.
func (p *progress) tick() {
	defer close(p.stopped)
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			p.mu.Lock()
			p.draw()
			p.mu.Unlock()
		case <-p.stop:
			return
		}
	}
}

// show counts a result.
func (p *progress) show(r conformance.Result) {
	p.mu.Lock()
	defer p.mu.Unlock()
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
	case conformance.Deviation:
		p.counts.Deviation++
	}
	if r.Verdict == conformance.Fail {
		p.clear()
		fmt.Fprintf(p.w, "lockctl: broken: %s: %s\n", r.Rule, r.Statement)
	}
	p.draw()
}

// draw shows the line, or now and then writes one.
func (p *progress) draw() {
	c := p.counts
	done := c.Pass + c.Fail + c.NotClaimed + c.Unclaimed + c.Inconclusive + c.Skipped + c.Deviation
	spent := time.Since(p.begun)
	line := fmt.Sprintf("%d of %d rules, %d broken, %s", done, max(p.total, done), c.Fail, spent.Round(time.Second))
	switch {
	case p.terminal:
		line = bar(done, p.total) + " " + line + estimate(done, p.total, spent)
		if p.columns > 1 && len(line) >= p.columns {
			line = line[:p.columns-1] // a longer one would not go away
		}
		p.clear()
		p.width = len(line)
		fmt.Fprint(p.w, line)
	case time.Since(p.last) >= quietly:
		p.last = time.Now()
		fmt.Fprintf(p.w, "lockctl: %s\n", line)
	}
}

// bar shows which part is done.
func bar(done, total int) string {
	const width = 20
	n := width
	if done < total {
		n = width * done / total
	}
	return "[" + strings.Repeat("#", n) + strings.Repeat(".", width-n) + "]"
}

// estimate says how long the rest takes at the speed so far, when that says something.
func estimate(done, total int, spent time.Duration) string {
	if done == 0 || done >= total || spent < 2*time.Second {
		return ""
	}
	left := time.Duration(float64(spent) * float64(total-done) / float64(done))
	return fmt.Sprintf(", about %s left", max(left.Round(time.Second), time.Second))
}

func (p *progress) clear() {
	if p.terminal && p.width > 0 {
		fmt.Fprintf(p.w, "\r%s\r", strings.Repeat(" ", p.width))
		p.width = 0
	}
}

// end removes the line.
func (p *progress) end() {
	if p.terminal {
		close(p.stop)
		<-p.stopped
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}
