package engine

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"time"
)

// Journal collects the operations on one key.
type Journal struct {
	Env    *Env
	Key    string
	Faults bool // answers may be lost

	mu    sync.Mutex
	Ops   []Operation
	holds int
}

// NewHold numbers a hold.
func (j *Journal) NewHold() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.holds++
	return j.holds
}

// Add adds an operation that began at call and ended now.
func (j *Journal) Add(op Operation, call time.Duration) {
	op.Call, op.Return = call, j.Env.Log.Now()
	j.put(op)
}

// Open adds an operation that may take effect at any time from then on.
func (j *Journal) Open(op Operation, from time.Duration) {
	op.Call, op.Return = from, Never
	j.put(op)
}

// Granted adds an acquisition that was called at call and is granted now. Where the
// answer to a request of its client was lost meanwhile, it may have been granted once
// before: it has started over, and its owner keeps the key by that grant until the
// clean-up has ended it.
func (j *Journal) Granted(op Operation, call time.Duration) {
	j.Add(op, call)
	if op.Owner == "" || !j.Env.Log.lostAnswer(op.Who, j.Key, call) {
		return // without an owner, the next grant needs the end of the first
	}
	before := Operation{Client: op.Client, Who: op.Who, Kind: MayGrant, Hold: j.NewHold(), Owner: op.Owner}
	j.Open(before, call)
	before.Kind, before.Owner = MayEnd, ""
	j.Open(before, call)
}

func (j *Journal) put(op Operation) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.Ops = append(j.Ops, op)
}

// history is what was collected, without the refusals that say nothing. Two tries
// at the same time may both be refused because of each other, where a try takes a
// place for a moment, or a part of the votes. And where clients count the holds of
// their owners, an owner does not enter what is only being cleaned up after it, or
// what the server has granted and the client has not heard of yet. Where clients are
// served in the order of their arrival, a free key may be due to a waiter, and a try of
// the waiter's own owner is refused until it has the key. Where answers are
// lost, an acquisition that was granted in the end may have had the key before, for a
// moment, by a grant that was withdrawn unheard.
func (j *Journal) history() History {
	j.mu.Lock()
	defer j.mu.Unlock()
	overlaps := func(a, b Operation) bool { return a.Call <= b.Return && b.Call <= a.Return }
	var ops []Operation
	for i, op := range j.Ops {
		if op.Kind != Refused || !slices.ContainsFunc(slices.Concat(j.Ops[:i:i], j.Ops[i+1:]), func(o Operation) bool {
			itself := op.Owner != "" && !ClaimServerHolds.Made(j.Env.Settings) &&
				(o.Return == Never && o.Who == op.Who || o.Kind == Granted && o.Owner == op.Owner)
			due := op.Owner != "" && j.Env.Claimed.Fair && o.Owner == op.Owner && (o.Kind == Granted || o.Kind == MayGrant)
			return overlaps(op, o) && (o.Kind == Refused || itself || due || j.Faults && o.Kind == Granted)
		}) {
			ops = append(ops, op)
		}
	}
	slices.SortStableFunc(ops, func(a, b Operation) int { return cmp.Compare(a.Call, b.Call) })
	next := 0
	for _, op := range ops {
		next = max(next, op.Client+1)
	}
	for i := range ops {
		if ops[i].Return == Never {
			ops[i].Client = next
			next++
		}
	}
	return History{Rule: j.Env.rule.Name, Key: j.Key, Tokens: ClaimTokens.Made(j.Env.Settings), Operations: ops}
}

// Judge gives the history to Config.Judge. It reports false when the judge could
// not decide.
func (j *Journal) Judge() bool {
	e := j.Env
	h := j.history()
	err := e.Judge(h)
	switch {
	case err == nil:
		return true
	case errors.Is(err, ErrInconclusive):
		e.Log.Note("suite", j.Key, "the judge: "+err.Error())
		return false
	}
	e.Failf(j.Key, "%v", err)
	return true
}
