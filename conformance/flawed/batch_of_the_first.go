package flawed

import (
	"context"

	"github.com/mortiselock/lock/backend"
)

var z106 = Lock{
	ID: "Z106", Title: "a batch of a hundred",
	Summary: "Of a larger batch the rest is said to be renewed, and isn't.",
	Seen:    "Limits of statements and pipelines (1000 items in an IN list, 500 writes in a batch) that a loop was to respect and cut at instead.",
	Instead: "Send as many requests as it takes, and answer for what each of them said.",
	File:    "batch_of_the_first.go", Over: Memory,
	Rule: "BatchRenewMixed",
	Also: []string{"ManyLeases", "RenewKeeps"},
	On:   onMemory(func(m primitives) backend.Backend { return firstHundred{m} }),
}

// firstHundred renews the first hundred.
//
//	A: holds 130 keys for 10 s, and renews them together -> 130 answers, no error
//	after 10 s 30 of them are free; A relies on all
//
// Caught by BatchRenewMixed, whose second batch has 130 holds.
//
// Instead: slices.Chunk.
type firstHundred struct{ primitives }

// RenewBatch implements backend.BatchRenewer.
func (f firstHundred) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	const most = 100
	sent := f.Clock().Now()
	out := f.Backend.(backend.BatchRenewer).RenewBatch(ctx, holds[:min(len(holds), most)])
	for _, h := range holds[len(out):] {
		out = append(out, backend.Renewal{Validity: backend.Validity{Sent: sent, For: backend.ValidFor(h.TTL)}})
	}
	return out
}
