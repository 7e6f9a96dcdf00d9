package faultlock

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// maxLog bounds the log.
const maxLog = 10_000

// Injection is an entry of the log: a fault that a call has met. It contains no
// secret.
type Injection struct {
	// At is the time since New.
	At time.Duration
	// Op and Key say which call it was, and Call that it was the how manieth of Op
	// on Key, counted from 1.
	Op   Op
	Key  string
	Call int
	// Fault is what the call met.
	Fault Fault
	// Landed is set in a second entry, which is made when the request of an
	// ApplyLate fault has been applied at last. Err is then the answer of the
	// server; a request that it granted is held until its TTL ends, if nobody
	// releases it.
	Landed bool
	Err    error
}

// String is the entry in one line.
func (i Injection) String() string {
	s := fmt.Sprintf("%9.3fs  %s %q, call %d: %s", i.At.Seconds(), i.Op, i.Key, i.Call, i.Fault)
	if i.Landed {
		s += ", applied now: "
		if i.Err == nil {
			s += "ok"
		} else {
			s += i.Err.Error()
		}
	}
	return s
}

// record adds an entry for a call that meets a fault. The mutex is held.
func (f *Faults) record(d decision) Injection {
	entry := Injection{At: time.Since(f.since), Op: d.op, Key: d.key, Call: d.call, Fault: d.Fault}
	f.append(entry)
	return entry
}

func (f *Faults) append(entry Injection) {
	if len(f.log) < maxLog {
		f.log = append(f.log, entry)
	} else {
		f.dropped++
	}
}

// landed adds the entry for a late request that has been applied.
func (f *Faults) landed(d decision, err error) {
	f.mu.Lock()
	entry := Injection{
		At: time.Since(f.since), Op: d.op, Key: d.key, Call: d.call, Fault: d.Fault,
		Landed: true, Err: err,
	}
	f.append(entry)
	f.mu.Unlock()
	if f.observe != nil {
		f.observe(entry)
	}
}

// Injected is the log: the faults that calls have met so far, the oldest first, at
// most 10,000 of them.
func (f *Faults) Injected() []Injection {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.log)
}

// Calls is how often the operation was called on the key so far, whatever it met:
// with it a test sees what a program sends, and when it stops. For OpHint it is how
// many signals came.
func (f *Faults) Calls(op Op, key string) int {
	checkOps([]Op{op})
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[call{op, key}]
}

// String is the log as text for people, with the seed and the points that it made
// active. Print it when a test fails.
func (f *Faults) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "faultlock: %d entries", len(f.log)+f.dropped)
	if f.seeded != nil {
		fmt.Fprintf(&b, "; seed %d, active points: %s", f.seeded.Seed, f.seeded.points())
	}
	for _, entry := range f.log {
		b.WriteString("\n" + entry.String())
	}
	if f.dropped > 0 {
		fmt.Fprintf(&b, "\nand %d more, which the log had no room for", f.dropped)
	}
	return b.String()
}
