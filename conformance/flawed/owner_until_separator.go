package flawed

import (
	"context"
	"strings"

	"github.com/mortiselock/lock/backend"
)

var z183 = Lock{
	ID: "Z183", Title: "owner and id in one text",
	Summary: "An owner with the separator in its name is cut there, and enters what another holds whose name begins alike.",
	Seen:    "Values such as owner:id, taken apart at the first colon.",
	Instead: "A field for each, or take the text apart at the end whose length is known.",
	File:    "owner_until_separator.go", Over: Memory,
	Rule: "ReentrantExplicit",
	On:   onMemory(func(m primitives) backend.Backend { return ownerUntilSeparator{m} }),
}

// ownerUntilSeparator knows an owner by what is before the first colon.
//
//	A: holds "report" as worker:1
//	B: asks as worker:2 -> granted, beside A
//
// Caught by ReentrantExplicit, which has a pair of owners for each usual separator.
type ownerUntilSeparator struct{ primitives }

// Try implements backend.Backend.
func (o ownerUntilSeparator) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if name, _, found := strings.Cut(req.Owner, ":"); found && name != "" {
		req.Owner = name
	}
	return o.primitives.Try(ctx, req)
}
