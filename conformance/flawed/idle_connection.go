package flawed

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
)

var z91 = Lock{
	ID: "Z91", Title: "a connection that nobody looks after",
	Summary: "After a quiet time the first call fails on a forgotten connection.",
	Seen:    "One connection, or a pool that does not look at idle ones.",
	Instead: "Close idle connections first, or look at them before use.",
	File:    "idle_connection.go", Over: Memory,
	Rule: "IdleLockerWorks",
	Also: []string{"TokenSurvivesIdling", "WaitOutlastsTTL", "ExpiryIsPerHold", "NoSecretsInErrors"},
	On:   onMemory(func(m primitives) backend.Backend { return &forgotten{primitives: m} }),
}

// forgotten finds its connection broken after a quiet time, and makes a new one for the
// next request only.
//
//	A, 02:00: SET job a NX PX 10000 -> OK; done, DEL job
//	the server closes the connection at 02:05
//	A, 03:00: SET job a NX PX 10000 -> broken pipe; the nightly job is skipped
//
// Whoever uses the lock all the time, as tests do, never sees it. Caught by
// IdleLockerWorks.
//
// Instead: a pool with a limit for idle connections that is shorter than the server's.
type forgotten struct {
	primitives

	mu   sync.Mutex
	used time.Time     // when the last request was made
	ttl  time.Duration // that it asked for
}

// Try implements backend.Backend.
func (f *forgotten) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if err := f.use(req.TTL); err != nil {
		return backend.Grant{}, err
	}
	return f.primitives.Try(ctx, req)
}

// Renew implements backend.Backend.
func (f *forgotten) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	if err := f.use(hold.TTL); err != nil {
		return backend.Validity{}, err
	}
	return f.primitives.Renew(ctx, hold)
}

// use reports a connection that the server has closed. It keeps one that is not used for
// two and a half of the TTLs that were asked for last, so that cases with longer TTLs may
// leave it alone for longer.
func (f *forgotten) use(ttl time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	closed := !f.used.IsZero() && now.Sub(f.used) > max(f.ttl, TTL)*5/2
	f.used, f.ttl = now, ttl
	if closed {
		return fmt.Errorf("%w: broken pipe", backend.ErrUnavailable)
	}
	return nil
}
