package flawed

import (
	"context"

	"github.com/mortiselock/lock"
)

var z112 = Lock{
	ID: "Z112", Title: "a hold that ends with the context of a renewal",
	Summary: "The time limit of a renewal ends the hold that was renewed.",
	Seen:    "Renewals that open a new stream of keep-alives with the context of their call.",
	Instead: "What outlives the call gets a context of its own.",
	File:    "renew_with_context.go", Over: Memory,
	Rule: "HoldOutlivesAcquireCtx",
	Also: []string{"CloseEndsHolds", "NothingKept"},
	On: asLocker(func(l *lock.Client) lock.Locker {
		return changed{policy{l}, func(lease lock.Lease, _ lock.Settings) lock.Lease { return streams{lease} }}
	}),
}

// streams renews by a stream, which lives as long as the context that it was opened with.
//
//	A: ctx, cancel := context.WithTimeout(ctx, time.Second); lease.Renew(ctx); cancel()
//	the stream ends, and the server takes that for the end of the client
//	B: Acquire("import") -> granted, beside A
//
// Caught by HoldOutlivesAcquireCtx, which ends the context of a renewal that has returned.
//
// Instead: context.WithoutCancel for the stream.
type streams struct{ lock.Lease }

// Renew implements lock.Lease.
func (s streams) Renew(ctx context.Context) error {
	err := s.Lease.Renew(ctx)
	if err == nil {
		context.AfterFunc(ctx, func() { _ = s.Lease.Release(context.Background()) })
	}
	return err
}
