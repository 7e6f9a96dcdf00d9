package flawed

import (
	"context"
	"sync"

	"github.com/mortiselock/lock/backend"
)

var z181 = Lock{
	ID: "Z181", Title: "answers kept by request",
	Summary: "A request that arrives again, late, is told that it holds the key, which somebody else has got in between.",
	Seen:    "Idempotency keys as in HTTP interfaces: the answer to a request is kept, and given to its repeats.",
	Instead: "Look up what the id holds now.",
	File:    "answers_remembered.go", Over: Memory,
	Rule: "TryIdempotent",
	On:   onMemory(func(m primitives) backend.Backend { return &answersRemembered{primitives: m} }),
}

// answersRemembered answers a repeat as the first request.
//
//	A: request 7 -> granted; released
//	B: request 8 -> granted
//	A: request 7, once more from a proxy -> granted, says the memory
//
// Caught by TryIdempotent, which repeats a request after the next grant.
type answersRemembered struct {
	primitives
	answers sync.Map
}

// Try implements backend.Backend.
func (a *answersRemembered) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := a.primitives.Try(ctx, req)
	if before, ok := a.answers.Load(req.ID); ok && err != nil && ctx.Err() == nil {
		return before.(backend.Grant), nil
	}
	if err == nil {
		a.answers.Store(req.ID, g)
	}
	return g, err
}
