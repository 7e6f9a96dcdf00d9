package conformance

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"sync"
	"time"
)

// History is what callers did with one key in one case, for [Config.Judge]. All
// times are on one monotonic clock.
type History struct {
	// Rule is the rule whose case it was.
	Rule string `json:"rule"`
	// Key is the key.
	Key string `json:"key"`
	// Tokens says whether the lock claims fencing tokens. Without it the tokens of
	// the operations mean nothing.
	Tokens bool `json:"tokens"`
	// Operations are in the order in which they were called.
	Operations []Operation `json:"operations"`
}

// Operation is one call, with what is known of its effect. The effect took place
// at one instant between Call and Return, both included.
type Operation struct {
	// Client numbers the callers, from 0. Operations of one client don't overlap:
	// what is not known to have ended has a client of its own.
	Client int `json:"client"`
	// Who is the caller's name in the evidence.
	Who string `json:"who"`
	// Kind says what the operation did.
	Kind OperationKind `json:"kind"`
	// Hold names the hold that it is about, from 1. It is 0 for Refused.
	Hold int `json:"hold"`
	// Owner is the explicit owner of an acquisition, or empty. Two operations name
	// the same owner if the lock must let one enter the hold of the other.
	Owner string `json:"owner,omitempty"`
	// Token is the fencing token that was granted.
	Token uint64 `json:"token,omitempty"`
	// Call is when the call was made, since the case began.
	Call time.Duration `json:"call"`
	// Return is when it returned, or Never.
	Return time.Duration `json:"return"`
}

// Never is the Return of an operation whose end is not known: its effect may come
// at any time after Call, or not at all.
const Never = time.Duration(math.MaxInt64)

// OperationKind says what an operation did.
type OperationKind string

// The kinds of operations.
const (
	// Granted: an acquisition that returned a lease. It needs a free key, or one
	// that its owner holds.
	Granted OperationKind = "granted"
	// Refused: a try that returned ErrHeld. It needs a key that another owner holds.
	Refused OperationKind = "refused"
	// MayGrant: an acquisition that returned an error, and may have been granted, or
	// may be granted later, all the same.
	MayGrant OperationKind = "may be granted"
	// Kept: a renewal that succeeded. It needs the hold.
	Kept OperationKind = "kept"
	// Released: a release that succeeded. It needs the hold, and ends it.
	Released OperationKind = "released"
	// Ended: a call that returned ErrNotHeld. It needs the hold to have ended.
	Ended OperationKind = "had ended"
	// MayEnd: a release whose outcome is not known, the clean-up after an
	// acquisition that may have been granted, or a lease that is left to run out. It
	// ends the hold if it is there.
	MayEnd OperationKind = "may end"
)

// ErrInconclusive is what [Config.Judge] wraps when it could not decide in time. The
// rule is then reported as skipped, and neither as passed nor as broken.
var ErrInconclusive = errors.New("conformance: could not be decided")

// journal collects the operations on one key.
type journal struct {
	e      *env
	key    string
	faults bool // answers may be lost

	mu    sync.Mutex
	ops   []Operation
	holds int
}

func (j *journal) newHold() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.holds++
	return j.holds
}

// add adds an operation that began at call and ended now.
func (j *journal) add(op Operation, call time.Duration) {
	op.Call, op.Return = call, j.e.hist.now()
	j.put(op)
}

// open adds an operation that may take effect at any time from then on.
func (j *journal) open(op Operation, from time.Duration) {
	op.Call, op.Return = from, Never
	j.put(op)
}

// granted adds an acquisition that was called at call and is granted now. Where the
// answer to a request of its client was lost meanwhile, it may have been granted once
// before: it has started over, and its owner keeps the key by that grant until the
// clean-up has ended it.
func (j *journal) granted(op Operation, call time.Duration) {
	j.add(op, call)
	if op.Owner == "" || !j.e.hist.lostAnswer(op.Who, j.key, call) {
		return // without an owner, the next grant needs the end of the first
	}
	before := Operation{Client: op.Client, Who: op.Who, Kind: MayGrant, Hold: j.newHold(), Owner: op.Owner}
	j.open(before, call)
	before.Kind, before.Owner = MayEnd, ""
	j.open(before, call)
}

func (j *journal) put(op Operation) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ops = append(j.ops, op)
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
func (j *journal) history() History {
	j.mu.Lock()
	defer j.mu.Unlock()
	overlaps := func(a, b Operation) bool { return a.Call <= b.Return && b.Call <= a.Return }
	var ops []Operation
	for i, op := range j.ops {
		if op.Kind != Refused || !slices.ContainsFunc(slices.Concat(j.ops[:i:i], j.ops[i+1:]), func(o Operation) bool {
			itself := op.Owner != "" && !claimServerHolds.made(j.e.settings) &&
				(o.Return == Never && o.Who == op.Who || o.Kind == Granted && o.Owner == op.Owner)
			due := op.Owner != "" && j.e.g.Fair && o.Owner == op.Owner && (o.Kind == Granted || o.Kind == MayGrant)
			return overlaps(op, o) && (o.Kind == Refused || itself || due || j.faults && o.Kind == Granted)
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
	return History{Rule: j.e.rule.Name, Key: j.key, Tokens: claimTokens.made(j.e.settings), Operations: ops}
}

// judge gives the history to Config.Judge. It reports false when the judge could
// not decide.
func (j *journal) judge() bool {
	e := j.e
	h := j.history()
	err := e.Judge(h)
	switch {
	case err == nil:
		return true
	case errors.Is(err, ErrInconclusive):
		e.hist.note("suite", j.key, "the judge: "+err.Error())
		return false
	}
	e.failf(j.key, "%v", err)
	return true
}
