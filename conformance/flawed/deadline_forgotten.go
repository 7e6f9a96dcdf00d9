package flawed

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
)

var z148 = Lock{
	ID: "Z148", Title: "a failed renewal that forgets the deadline",
	Summary: "One request was lost, and a holder with two thirds of its time left is told that nobody knows.",
	Seen:    "A field that takes the result of each renewal, the empty one of an error included.",
	Instead: "A renewal that fails changes nothing: the hold goes on until the deadline that it had.",
	File:    "deadline_forgotten.go", Over: Memory,
	Rule: "EndedContexts",
	Also: []string{"RenewUnknown"},
	On: asLocker(func(l *lock.Client) lock.Locker {
		return changed{policy{l}, func(lease lock.Lease, _ lock.Settings) lock.Lease { return &forgetful{Lease: lease} }}
	}),
}

// forgetful has no deadline between a renewal that failed and one that did not.
//
//	A: Renew(ctx), whose context has run out -> context.DeadlineExceeded
//	A: Deadline() -> unknown; A stops, with 10 s left
//
// Caught by EndedContexts.
type forgetful struct {
	lock.Lease
	failed atomic.Bool
}

// Renew implements lock.Lease.
func (f *forgetful) Renew(ctx context.Context) error {
	err := f.Lease.Renew(ctx)
	f.failed.Store(err != nil)
	return err
}

// Deadline implements lock.Lease.
func (f *forgetful) Deadline() (time.Time, bool) {
	if f.failed.Load() && f.Context().Err() == nil {
		return time.Time{}, false
	}
	return f.Lease.Deadline()
}
