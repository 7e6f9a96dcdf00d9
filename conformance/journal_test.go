package conformance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/mortiselock/lock/backend"
)

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
		s := &settings{g: backend.Guarantees{Fair: c.fair, Reentrancy: backend.ReentrancyServer}}
		j := &journal{e: &env{settings: s, rule: linearizableRule}, ops: []Operation{try, c.other}}
		kept := false
		for _, op := range j.history().Operations {
			kept = kept || op.Kind == Refused && op.Call == try.Call
		}
		assert.Equal(t, c.kept, kept, name)
	}
}
