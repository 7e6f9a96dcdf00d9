package flawed

import (
	"context"
	"sync"

	"github.com/mortiselock/lock/backend"
)

var z108 = Lock{
	ID: "Z108", Title: "tokens that an operator sets back",
	Summary: "After a release by force the next holder gets the last token again.",
	Seen:    "Unlock commands of operators that put back the row as it was before the grant, token and all.",
	Instead: "Free the record, and leave its counter alone.",
	File:    "force_restarts_tokens.go", Over: Memory,
	Rule: "ForceReleaseByToken",
	Also: []string{"HolderIsShown", "InspectShows", "LostOnRemoval", "TokenSurvivesRelease"},
	On: onMemory(func(m primitives) backend.Backend {
		return setBack{m, m.Backend.(backend.Inspector), undone}
	}),
}

// undone is the tokens that are given out again, by key.
var undone = new(sync.Map)

// setBack undoes the grant of a hold that it ends.
//
//	A: granted, token 7, and hangs; an operator frees the key
//	B: granted, token 7, and writes
//	A wakes up and writes with token 7: the store sees no difference between the two
//
// Caught by ForceReleaseByToken, which looks at the next token.
//
// Instead: UPDATE locks SET owner = NULL WHERE name = ? AND token = ?.
type setBack struct {
	primitives
	backend.Inspector
	again *sync.Map
}

// ForceRelease implements backend.ForceReleaser.
func (s setBack) ForceRelease(ctx context.Context, key string, token uint64) error {
	err := s.Backend.(backend.ForceReleaser).ForceRelease(ctx, key, token)
	if err == nil {
		s.again.Store(key, token)
	}
	return err
}

// Try implements backend.Backend.
func (s setBack) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := s.primitives.Try(ctx, req)
	if err != nil {
		return g, err
	}
	if token, ok := s.again.LoadAndDelete(req.Key); ok {
		g.Token = token.(uint64)
	}
	return g, err
}
