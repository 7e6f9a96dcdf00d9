package conformance

import (
	"time"

	"github.com/mortiselock/lock/conformance/internal/engine"
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
const Never = engine.Never

// OperationKind says what an operation did.
type OperationKind string

// The kinds of operations.
const (
	// Granted: an acquisition that returned a lease. It needs a free key, or one
	// that its owner holds.
	Granted OperationKind = OperationKind(engine.Granted)
	// Refused: a try that returned ErrHeld. It needs a key that another owner holds.
	Refused OperationKind = OperationKind(engine.Refused)
	// MayGrant: an acquisition that returned an error, and may have been granted, or
	// may be granted later, all the same.
	MayGrant OperationKind = OperationKind(engine.MayGrant)
	// Kept: a renewal that succeeded. It needs the hold.
	Kept OperationKind = OperationKind(engine.Kept)
	// Released: a release that succeeded. It needs the hold, and ends it.
	Released OperationKind = OperationKind(engine.Released)
	// Ended: a call that returned ErrNotHeld. It needs the hold to have ended.
	Ended OperationKind = OperationKind(engine.Ended)
	// MayEnd: a release whose outcome is not known, the clean-up after an
	// acquisition that may have been granted, or a lease that is left to run out. It
	// ends the hold if it is there.
	MayEnd OperationKind = OperationKind(engine.MayEnd)
)

// ErrInconclusive is what [Config.Judge] wraps when it could not decide in time. The
// rule is then reported as skipped, and neither as passed nor as broken.
var ErrInconclusive = engine.ErrInconclusive

// history is what the machinery has collected.
func history(h engine.History) History {
	ops := make([]Operation, len(h.Operations))
	for i, op := range h.Operations {
		ops[i] = Operation{
			Client: op.Client, Who: op.Who, Kind: OperationKind(op.Kind), Hold: op.Hold,
			Owner: op.Owner, Token: op.Token, Call: op.Call, Return: op.Return,
		}
	}
	return History{Rule: h.Rule, Key: h.Key, Tokens: h.Tokens, Operations: ops}
}
