package engine

import (
	"bytes"
	"context"
	"fmt"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"
)

// The residue oracle counts the goroutines that a piece of work has left behind.
// Goroutines inherit the profiler labels of those that start them, so the count
// is not disturbed by whatever else runs in the process.

const residueLabel = "conformance-residue"

// Labelled runs f in a goroutine whose descendants can be counted with residue.
func (e *Env) Labelled(label string, f func()) {
	e.Start(func() {
		pprof.Do(context.Background(), pprof.Labels(residueLabel, label), func(context.Context) { f() })
	})()
}

// residue counts the living goroutines that carry the label, and shows their
// stacks.
func residue(label string) (int, string) {
	var buf bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&buf, 1); err != nil {
		return 0, ""
	}
	n := 0
	var stacks []string
	mark := strconv.Quote(residueLabel) + ":" + strconv.Quote(label)
	for _, block := range strings.Split(buf.String(), "\n\n") {
		if !strings.Contains(block, mark) {
			continue
		}
		block = strings.TrimSpace(block)
		count, _, _ := strings.Cut(block, " @")
		if i := strings.LastIndexByte(count, '\n'); i >= 0 {
			count = count[i+1:]
		}
		k, err := strconv.Atoi(count)
		if err != nil {
			continue
		}
		n += k
		if len(stacks) < 3 {
			stacks = append(stacks, fmt.Sprintf("%d x%s", k, functions(block)))
		}
	}
	return n, strings.Join(stacks, "\n")
}

// functions lists the functions of a stack in the profile's text form.
func functions(block string) string {
	var b strings.Builder
	for _, line := range strings.Split(block, "\n") {
		if f := strings.Split(line, "\t"); len(f) >= 3 && f[0] == "#" {
			name, _, _ := strings.Cut(f[2], "+0x")
			fmt.Fprintf(&b, " < %s", strings.TrimSpace(name))
		}
	}
	return b.String()
}

// Settles waits until at most n labelled goroutines are left, and returns how
// many there are when the patience ends.
func (e *Env) Settles(label string, n int, patience time.Duration) (int, string) {
	t := time.NewTimer(patience)
	defer t.Stop()
	for pause := 20 * time.Millisecond; ; pause += pause / 2 { // a look costs more than most cases do
		left, stacks := residue(label)
		if left <= n {
			return left, stacks
		}
		select {
		case <-t.C:
			return residue(label)
		case <-time.After(pause):
		case <-e.Ctx.Done():
			panic(Abort{})
		}
	}
}
