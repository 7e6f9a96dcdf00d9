package flawed

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
)

var z125 = Lock{
	ID: "Z125", Title: "a renewal that is not worth a request",
	Summary: "Whoever renews before a long step is told that all is well, and has no more time than before.",
	Seen:    "Limits for calls that come too often, which answer without an error.",
	Instead: "Renew, or say that you did not.",
	File:    "renew_says_enough.go", Over: Memory,
	Rule: "RenewByHand",
	Also: []string{"EndedContexts"},
	On: asLocker(func(l *lock.Client) lock.Locker {
		return changed{policy{l}, func(lease lock.Lease, set lock.Settings) lock.Lease {
			r := &seldom{Lease: lease, every: set.TTL / 6}
			r.last.Store(time.Now().UnixNano())
			return r
		}}
	}),
}

// seldom renews at most six times in a TTL.
//
//	A: granted for 10 s; a second later Renew, for a step of 9.5 s -> ok
//	after 9 s of the step the lease has run out
//
// Tests renew after a half or a third of the TTL. Caught by RenewByHand, which renews soon
// after the last time too.
type seldom struct {
	lock.Lease
	every time.Duration
	last  atomic.Int64
}

// Renew implements lock.Lease.
func (s *seldom) Renew(ctx context.Context) error {
	if s.Context().Err() == nil && time.Since(time.Unix(0, s.last.Load())) < s.every {
		return nil
	}
	err := s.Lease.Renew(ctx)
	if err == nil {
		s.last.Store(time.Now().UnixNano())
	}
	return err
}
