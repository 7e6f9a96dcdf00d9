package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
)

// An acquisition that was granted in the end may have left its owner with a grant of
// its own before, where an answer was lost to its client meanwhile, and only there.
func TestGrantsBeforeTheGrant(t *testing.T) {
	t.Parallel()
	const lost, late = "fail after", "delay after (1ms)"
	for name, c := range map[string]struct {
		op              faultlock.Op
		owner, who, key string
		fault           string
		before          bool // the fault came before the call
		more            bool
	}{
		"the answer to a try":             {faultlock.OpTry, "A", "client 1", "k", lost, false, true},
		"the answer of a queue":           {faultlock.OpWait, "A", "client 1", "k", lost, false, true},
		"an answer before the call":       {faultlock.OpTry, "A", "client 1", "k", lost, true, false},
		"an answer that came late":        {faultlock.OpTry, "A", "client 1", "k", late, false, false},
		"the answer to a release":         {faultlock.OpRelease, "A", "client 1", "k", lost, false, false},
		"the answer to another client":    {faultlock.OpTry, "A", "client 2", "k", lost, false, false},
		"the answer about another key":    {faultlock.OpTry, "A", "client 1", "l", lost, false, false},
		"a hold that can't be re-entered": {faultlock.OpTry, "", "client 1", "k", lost, false, false},
	} {
		h := newCallLog(time.Now())
		j := &Journal{Env: &Env{Log: h}, Key: "k", Faults: true, holds: 1}
		if c.before {
			h.disturb(c.who, c.key, c.op, c.fault)
			for begun := h.Now(); h.Now() == begun; { // the clock goes on
			}
		}
		call := h.Now()
		if !c.before {
			h.disturb(c.who, c.key, c.op, c.fault)
		}
		j.Granted(Operation{Who: "client 1", Kind: Granted, Hold: 1, Owner: c.owner, Token: 7}, call)
		if !c.more {
			assert.Len(t, j.Ops, 1, name)
			continue
		}
		if assert.Len(t, j.Ops, 3, name) {
			assert.Equal(t, Operation{Who: "client 1", Kind: MayGrant, Hold: 2, Owner: "A", Call: call, Return: Never}, j.Ops[1], name)
			assert.Equal(t, Operation{Who: "client 1", Kind: MayEnd, Hold: 2, Call: call, Return: Never}, j.Ops[2], name)
		}
	}
}

// A refusal counts against the lock unless something that was under way at the same
// time explains it.
func TestRefusalsThatSayNothing(t *testing.T) {
	t.Parallel()
	at := func(kind OperationKind, owner string, from, to time.Duration) Operation {
		return Operation{Kind: kind, Who: "client " + owner, Owner: owner, Call: from, Return: to}
	}
	try := at(Refused, "A", 10*ms, 20*ms)
	for name, c := range map[string]struct {
		fair  bool
		other Operation
		kept  bool
	}{
		"beside another refusal":                     {false, at(Refused, "B", 15*ms, 25*ms), false},
		"after another refusal":                      {false, at(Refused, "B", 1*ms, 5*ms), true},
		"beside a grant":                             {false, at(Granted, "A", 5*ms, 25*ms), true},
		"the key is due to its owner":                {true, at(Granted, "A", 5*ms, 25*ms), false},
		"the key is due to its owner, who gives up":  {true, at(MayGrant, "A", 5*ms, Never), false},
		"its owner has waited before":                {true, at(Granted, "A", 1*ms, 5*ms), true},
		"somebody else waits":                        {true, at(Granted, "B", 5*ms, 25*ms), true},
		"a release of its owner is no wait":          {true, at(Released, "A", 5*ms, 25*ms), true},
		"a release of its owner that got no answer":  {true, at(MayEnd, "A", 5*ms, Never), true},
		"its owner waits, where others may be first": {false, at(MayGrant, "A", 5*ms, Never), true},
	} {
		s := &Settings{Claimed: backend.Guarantees{Fair: c.fair, Reentrancy: backend.ReentrancyServer}}
		j := &Journal{Env: &Env{Settings: s, rule: &Rule{}}, Ops: []Operation{try, c.other}}
		kept := false
		for _, op := range j.history().Operations {
			kept = kept || op.Kind == Refused && op.Call == try.Call
		}
		assert.Equal(t, c.kept, kept, name)
	}
}
