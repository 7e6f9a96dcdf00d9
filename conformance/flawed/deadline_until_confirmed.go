package flawed

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z147 = Lock{
	ID: "Z147", Title: "a deadline that only a confirmed release ends",
	Summary: "The release may have been applied, and the lease says that it is certain for another TTL.",
	Seen:    "State that is cleared after the answer, on the path without an error.",
	Instead: "The deadline ends with the context, before the server is told.",
	File:    "deadline_until_confirmed.go", Over: Memory,
	Rule: "ReleaseUnknown",
	On: onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker {
		return changed{policy{l}, func(lease lock.Lease, _ lock.Settings) lock.Lease { return &confirmed{Lease: lease} }}
	}),
}

// confirmed forgets its deadline when the server has said that the hold is over.
//
//	A: Release() -> ErrOutcomeUnknown: the answer was lost, and the release was not
//	B: Acquire("import") -> granted
//	A: time.Until(deadline) is 12 s: time to write what was not written yet
//
// Caught by ReleaseUnknown.
type confirmed struct {
	lock.Lease

	mu   sync.Mutex
	last time.Time // of a release without an answer
}

// Release implements lock.Lease.
func (c *confirmed) Release(ctx context.Context) error {
	last, _ := c.Lease.Deadline()
	err := c.Lease.Release(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(err, lock.ErrOutcomeUnknown) && last.After(c.last) {
		c.last = last
	}
	return err
}

// Deadline implements lock.Lease.
func (c *confirmed) Deadline() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.last.IsZero() {
		return c.last, true
	}
	return c.Lease.Deadline()
}
