package faultlock

import (
	"fmt"
	"slices"
)

// Rule says which calls meet a fault. Rules are looked at in the order in which
// they were added; the first that matches a call and is not used up decides about
// it, even if its Fault is Pass.
type Rule struct {
	// Ops are the operations. None stands for all of them.
	Ops []Op
	// Key is the key. The empty string stands for every key.
	Key string
	// Skip is how many calls that match are left to the rules behind this one
	// before it begins.
	Skip int
	// Times is how many calls meet the fault; then the rule is used up. Zero stands
	// for all of them, until Heal.
	Times int
	// Fault is what happens to them.
	Fault Fault
}

// rule is a Rule with what is left of it.
type rule struct {
	Rule
	skip, left int
}

// Add adds rules behind those that are there. It panics on an operation that does
// not exist and on negative numbers.
func (f *Faults) Add(rules ...Rule) {
	for _, r := range rules {
		checkOps(r.Ops)
		if r.Skip < 0 || r.Times < 0 {
			panic(fmt.Sprintf("faultlock: a rule with Skip %d and Times %d; they must not be negative", r.Skip, r.Times))
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range rules {
		r.Ops = slices.Clone(r.Ops)
		f.rules = append(f.rules, &rule{Rule: r, skip: r.Skip, left: r.Times})
	}
}

// Next makes the next n calls of the operations (n in all, of any operation when
// none is named) meet the fault. One Next after another is an ordered list.
func (f *Faults) Next(n int, fault Fault, ops ...Op) {
	if n <= 0 {
		panic(fmt.Sprintf("faultlock: Next %d; it must be positive", n))
	}
	f.Add(Rule{Ops: ops, Times: n, Fault: fault})
}

// All makes all calls of the operations (of any operation when none is named) meet
// the fault, until Heal. All(HangBefore()) cuts the connection: nothing comes
// through, in either direction.
func (f *Faults) All(fault Fault, ops ...Op) { f.Add(Rule{Ops: ops, Fault: fault}) }

// ruled is the fault that the rules have for a call, and whether they have one.
// The mutex is held.
func (f *Faults) ruled(op Op, key string) (Fault, bool) {
	for i, r := range f.rules {
		if len(r.Ops) > 0 && !slices.Contains(r.Ops, op) || r.Key != "" && r.Key != key {
			continue
		}
		if r.skip > 0 {
			r.skip--
			continue
		}
		if r.Times > 0 {
			if r.left--; r.left == 0 {
				f.rules = slices.Delete(f.rules, i, i+1)
			}
		}
		return r.Fault, true
	}
	return Fault{}, false
}
