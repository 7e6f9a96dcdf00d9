package flawed

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock/backend"
)

var z134 = Lock{
	ID: "Z134", Title: "less than nothing that is left",
	Summary: "A refusal says that the lease lasts for another -8 ms, and a timer that is set by it fires at once, again and again.",
	Seen:    "The deadline of the holder, which ends a little before the record, taken for the end of the record.",
	Instead: "Zero for what is over or not known.",
	File:    "less_than_nothing_left.go", Over: Memory,
	Rule: "HeldDetails",
	Also: []string{"HoldersTTLCounts", "InspectShows", "HolderIsShown", "BackendErrors"},
	On:   onMemory(func(m primitives) backend.Backend { return holdersDeadline{m} }),
}

// holdersDeadline tells others the deadline of the holder.
//
//	the record ends at 10.000 s, the holder relies on it until 9.898 s
//	B, at 9.95 s: refused, "for another -52 ms"
//
// Caught by HeldDetails, which asks until the end.
//
// Instead: max(0, left).
type holdersDeadline struct{ primitives }

// Try implements backend.Backend.
func (h holdersDeadline) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := h.primitives.Try(ctx, req)
	if held := (*backend.HeldError)(nil); errors.As(err, &held) {
		told := *held
		told.Remaining -= 12 * time.Millisecond
		err = &told
	}
	return g, err
}
