package flawed

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z187 = Lock{
	ID: "Z187", Title: "a close that returns at the first error",
	Summary: "Close asks the server first, and when that fails it ends nothing: the leases are renewed on.",
	Seen:    "Close methods that begin with `if err := c.flush(ctx); err != nil { return err }`, before they stop their goroutines.",
	Instead: "Stop what renews first, whatever the server says later.",
	File:    "close_needs_server.go", Over: Memory,
	Rule: "CloseUnreachable",
	On: onPolicy(func(l *lock.Client, b backend.Backend) lock.Locker {
		c := &closeNeedsServer{b: b}
		c.changed = changed{policy{l}, c.remember}
		return c
	}),
}

// closeNeedsServer asks the server for a key before it closes.
//
//	A: holds "job"
//	       the server cannot be reached
//	A: Close() -> an error; nobody reads it
//	       the server can be reached again
//	A renews "job" for as long as its process lives, and nobody works on it
//
// Caught by CloseUnreachable, which looks at the key afterwards.
//
// Instead: Close ends renewals and waits before it sends anything.
type closeNeedsServer struct {
	changed
	b   backend.Backend
	key atomic.Pointer[string] // the last that was granted
}

func (c *closeNeedsServer) remember(lease lock.Lease, _ lock.Settings) lock.Lease {
	key := lease.Key()
	c.key.Store(&key)
	return lease
}

// Close implements lock.Locker.
func (c *closeNeedsServer) Close() error {
	if key := c.key.Load(); key != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := c.b.Renew(ctx, backend.Hold{Key: *key, ID: backend.NewID(), TTL: time.Second}) // is it there?
		if errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrOutcomeUnknown) {
			return err
		}
	}
	return c.policy.Close()
}
