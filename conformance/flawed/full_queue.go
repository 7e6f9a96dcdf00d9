package flawed

import (
	"context"

	"github.com/mortiselock/lock/backend"
)

var z110 = Lock{
	ID: "Z110", Title: "a full queue that gives neither a place nor an error",
	Summary: "Who comes after the last place crashes.",
	Seen:    "Functions that return nil, nil, and callers who look at the error only.",
	Instead: "An error whenever there is no place.",
	File:    "full_queue.go", Over: Memory,
	Rule: "QueueOrder",
	Also: []string{"FairOrder"},
	On:   onQueue(func(q queued) backend.Backend { return fullQueue{q} }),
}

// mostPlaces is how many may wait for a key.
const mostPlaces = 8

// fullQueue has no room for more, and takes that for an answer in which nothing is wrong.
//
//	A holds job; eight clients wait for it
//	B: SELECT COUNT(*) FROM places WHERE job -> 8, so there is no place, and err is nil
//	B: ticket, err := Enqueue("job") -> nil, nil
//	B: err is nil, so it waits at its place, and the process crashes
//
// With a few clients everything is well. Caught by QueueOrder, which has a dozen places taken
// and asks whether each is there.
//
// Instead: a result that says nothing is an error.
type fullQueue struct{ queued }

func (f fullQueue) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	rec, err := f.Backend.(backend.Inspector).Inspect(ctx, req.Key)
	if err == nil && rec.Waiters >= mostPlaces {
		return nil, nil //nolint:nilnil // the mistake
	}
	return f.queued.Enqueue(ctx, req)
}
