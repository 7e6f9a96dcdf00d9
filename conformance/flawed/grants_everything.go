package flawed

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/mortiselock/lock/backend"
)

var z49Open = Lock{
	ID: "Z49", Title: "grants everything",
	Summary: "Every request is granted.",
	Seen:    "Locks that fail open when the server is away (useautumn/autumn#2593).",
	Instead: "No answer is no grant.",
	File:    "grants_everything.go", Over: Memory,
	Rule: "Exclusive",
	Also: slices.Concat(keepsNobodyOut, []string{
		"HeldDetails", "HolderIsShown", "HoldCount", "TokenIncreases", "TokenInGrantOrder", "TokenStable", "TokenSurvivesIdling", "TokenSurvivesLastClose", "NoSecretsInErrors",
		"ReentrantCount", "ReentrantExplicit", "ReentrantSameToken", "ReentrantExtends", "ReentrantOtherLocker", "ReentrantOwnLeases",
		"ReentrantLimit", "ReentrantModel", "ReentrantOverWaiters", "ReentrantAfterLoss", "ReentrantFault",
	}),
	On: onMemory(func(m primitives) backend.Backend { return &grantsEverything{primitives: m} }),
}

// grantsEverything is a lock whose server has been away since it was opened, and
// which takes every error for a grant.
//
//	A: SET job a NX PX 10000   -> connection refused; a warning is logged, A works
//	B: SET job b NX PX 10000   -> connection refused; a warning is logged, B works
//
// Caught by Exclusive, and by nearly every other rule: a suite that lets it pass
// tests nothing.
//
// Instead: return the error. Whether work without the lock is better than no work
// is a question that only the caller can answer, and must be asked.
type grantsEverything struct {
	primitives
	tokens atomic.Uint64
}

func (b *grantsEverything) Try(_ context.Context, req backend.Request) (backend.Grant, error) {
	g := granted(b.Clock().Now(), req.TTL)
	g.Token = b.tokens.Add(1)
	return g, nil
}

func (b *grantsEverything) Renew(_ context.Context, hold backend.Hold) (backend.Validity, error) {
	return validity(b.Clock().Now(), hold.TTL), nil
}

func (b *grantsEverything) Release(context.Context, backend.Hold) error { return nil }
