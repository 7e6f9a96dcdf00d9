package flawed

import (
	"context"

	"github.com/mortiselock/lock/backend"
)

var z49Shut = Lock{
	ID: "Z49", Title: "never grants anything",
	Summary: "Every request is refused as held.",
	Seen:    "Every error taken for contention (KanishJebaMathewM/Truxify#6003).",
	Instead: "Tell apart held, refused for good, and not reachable.",
	File:    "grants_nothing.go", Over: Memory,
	Rule: "HandsOut",
	// Whatever needs a grant.
	Also: []string{"exclusion", "release", "expiry", "renewal", "loss", "tokens", "reentrancy", "waiting", "keys", "errors", "close", "faults", "backend"},
	On:   onMemory(func(m primitives) backend.Backend { return grantsNothing{m} }),
}

// grantsNothing is a lock that was given a server it may not write to, and that
// answers "somebody else holds it" whatever the reason.
//
//	A: SET job a NX PX 10000   -> NOPERM; "held by another owner"
//	B: SET job b NX PX 10000   -> NOPERM; "held by another owner"
//
// It is perfectly exclusive: a suite that only looks for two holders passes it.
// Caught by HandsOut.
//
// Instead: an error for each kind of refusal, so that a wait that cannot succeed
// ends at once.
type grantsNothing struct{ primitives }

func (b grantsNothing) Try(_ context.Context, req backend.Request) (backend.Grant, error) {
	return backend.Grant{}, held(req.Key)
}
