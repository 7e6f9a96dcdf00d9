package flawed

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z161 = Lock{
	ID: "Z161", Title: "a release that is repeated until the first TTL has passed",
	Summary: "Whoever was renewed for an hour, and releases while the server is away, keeps others out for another TTL.",
	Seen:    "acquired.Add(ttl) as the end of the retries, in a field that no renewal moves.",
	Instead: "Repeat until a TTL after the last renewal that was sent.",
	File:    "repeats_of_the_first_ttl.go", Over: Memory,
	Rule: "ReleaseUnknown",
	On: onPolicyOver{
		beneath: func(b backend.Backend) backend.Backend {
			return &firstTTL{primitives: primitives{b}, grants: map[backend.ID]time.Time{}, failed: map[backend.ID]bool{}}
		},
		policy: func(l *lock.Client, _ backend.Backend) lock.Locker { return policy{l} },
	},
}

// firstTTL takes a release that has failed for needless when a TTL has passed since the grant.
//
//	A, 02:00: SET import a NX PX 30000, renewed until 03:10
//	A, 03:10: DEL import -> connection refused, the server restarts from its file
//	A, a second later: 02:00:30 is over, nothing to repeat
//	B, 03:10:02: SET import b NX -> nil, until 03:10:30
//
// A test that releases what it has just acquired sees the release repeated. Caught by
// ReleaseUnknown.
type firstTTL struct {
	primitives

	mu     sync.Mutex
	grants map[backend.ID]time.Time // when what was granted would have expired
	failed map[backend.ID]bool
}

// Try implements backend.Backend.
func (f *firstTTL) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := f.primitives.Try(ctx, req)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		f.grants[req.ID] = time.Now().Add(req.TTL)
	}
	return g, err
}

// Release implements backend.Backend.
func (f *firstTTL) Release(ctx context.Context, hold backend.Hold) error {
	if f.needless(hold.ID) {
		return backend.ErrNotHeld
	}
	err := f.primitives.Release(ctx, hold)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil && !errors.Is(err, backend.ErrNotHeld) {
		f.failed[hold.ID] = true
		return err
	}
	delete(f.grants, hold.ID)
	delete(f.failed, hold.ID)
	return err
}

func (f *firstTTL) needless(id backend.ID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	end, known := f.grants[id]
	if !known || !f.failed[id] || time.Now().Before(end) {
		return false
	}
	delete(f.grants, id)
	delete(f.failed, id)
	return true
}
