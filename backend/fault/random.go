package faultlock

import (
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Random draws faults, as FoundationDB's client does for its users under the name
// Buggify. Each pair of an operation and a kind of fault is a point. A run, that
// is a seed, has a fraction of the points active, so that different runs know
// different troubles; and an active point fires with a probability on each call.
//
// What is drawn depends on the seed, the operation, the key, and the how manieth
// call of the operation on the key it is, and on nothing else: not on time, not on
// the order of goroutines. The same seed gives the same faults to a program that
// makes the same calls on the same keys.
//
// A hang is drawn only for calls whose context has a deadline, and never one that
// ignores it, so that every call returns.
type Random struct {
	// Seed is where the faults come from. Zero takes a random one. The log of the
	// Faults begins with it.
	Seed uint64

	// Active is the fraction of the points that are active in this run, above 0
	// and up to 1. Zero means the default: 0.25, that of FoundationDB.
	Active float64

	// Chance is the probability that an active point fires, above 0 and up to 1.
	// Zero means the default: 0.05. FoundationDB has 0.25 there; but a lock has few
	// points, all of them on its one path, and its calls wait for each other.
	Chance float64

	// MaxDelay bounds the delays. Zero means the default: 100 ms. Delays longer than
	// a third of the TTL of the leases make calls time out.
	MaxDelay time.Duration

	// Ops are the operations to draw for. None stands for all of them.
	Ops []Op

	// Faults are what can be drawn. None stands for one of each kind. A hang lasts
	// until its context ends, which takes a part of the TTL: tests that don't run in
	// virtual time name the others here. A delay of zero stands for one that is drawn
	// too; a longer one is taken as it is.
	Faults []Fault
}

// everyKind is one fault of each kind.
var everyKind = []Fault{
	FailBefore(), Drop(), FailAfter(), DelayBefore(0), DelayAfter(0), Duplicate(), ApplyLate(0), HangBefore(), HangAfter(),
}

// draw is a checked Random.
type draw struct {
	Random
	active map[Op][]Fault
}

func newDraw(r Random) *draw {
	checkOps(r.Ops)
	if r.Active < 0 || r.Active > 1 || r.Chance < 0 || r.Chance > 1 || r.MaxDelay < 0 {
		panic("faultlock: Random.Active and Chance must be between 0 and 1, and MaxDelay must not be negative")
	}
	if r.Seed == 0 {
		r.Seed = max(rand.Uint64(), 1)
	}
	if r.Active == 0 {
		r.Active = 0.25
	}
	if r.Chance == 0 {
		r.Chance = 0.05
	}
	if r.MaxDelay == 0 {
		r.MaxDelay = 100 * time.Millisecond
	}
	r.Ops, r.Faults = slices.Clone(r.Ops), slices.Clone(r.Faults)
	if len(r.Faults) == 0 {
		r.Faults = everyKind
	}
	d := &draw{Random: r, active: map[Op][]Fault{}}
	for _, op := range ops {
		if len(r.Ops) > 0 && !slices.Contains(r.Ops, op) {
			continue
		}
		for _, f := range r.Faults {
			switch {
			case f.kind == pass,
				f.kind == duplicate && !op.repeats(),
				f.kind == applyLate && !op.appliesLate():
				continue
			}
			if d.roll("active", op, f, "", 0) < r.Active {
				d.active[op] = append(d.active[op], f)
			}
		}
	}
	return d
}

// roll is a number from 0 up to 1 that depends on the seed and the arguments.
func (d *draw) roll(what string, op Op, f Fault, key string, call int) float64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(strings.Join([]string{what, string(op), f.String(), key}, "\x00")))
	return rand.New(rand.NewPCG(d.Seed^uint64(call)<<32, h.Sum64())).Float64()
}

// fault is what the call meets. bounded tells whether its context has a deadline.
func (d *draw) fault(op Op, key string, call int, bounded bool) Fault {
	for _, f := range d.active[op] {
		if f.hangs() && (!bounded || f.deaf) || d.roll("fire", op, f, key, call) >= d.Chance {
			continue
		}
		if f.takesTime() && f.delay == 0 {
			f.delay = 1 + time.Duration(d.roll("delay", op, f, key, call)*float64(d.MaxDelay))
		}
		return f
	}
	return Pass()
}

// points lists what is active, for the log.
func (d *draw) points() string {
	var out []string
	for _, op := range ops {
		for _, f := range d.active[op] {
			out = append(out, string(op)+"/"+f.name())
		}
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}
