package flawed

import (
	"context"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
)

var z170 = Lock{
	ID: "Z170", Title: "expired records that are looked for, and then deleted by key",
	Summary: "The next holder's record goes with them: two holders.",
	Seen:    "Clean-up jobs with a SELECT of expired keys and a DELETE for each.",
	Instead: "DELETE ... WHERE ends_at < now, in one statement.",
	File:    "clears_late.go", Over: Memory,
	Rule: "ExclusiveAcrossTakeover",
	Also: takeovers,
	On:   onCleared(func(p primitives, rows *endingRows) backend.Backend { return clearsLate{p, rows} }),
}

// onCleared makes a client of a store of which all clients clear away what has expired.
type onCleared func(p primitives, rows *endingRows) backend.Backend

// Make implements flaw.Maker.
func (on onCleared) Make(context.Context, Lock, any) (conformance.Config, error) {
	rows := &endingRows{ends: map[string]time.Time{}}
	return inMemory(false, func(b backend.Backend) backend.Backend { return on(primitives{b}, rows) }), nil
}

// endingRows is until when records last, by key, and when somebody last looked for expired ones.
type endingRows struct {
	mu     sync.Mutex
	ends   map[string]time.Time
	looked time.Time
}

// clearsEvery is how often expired records are looked for. In earnest it is seconds or minutes.
const clearsEvery = dawdling

// expired is the keys whose records have expired, if it is time to look for them.
func (r *endingRows) expired() (keys []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Sub(r.looked) < clearsEvery {
		return nil
	}
	r.looked = now
	for key, end := range r.ends {
		if !now.Before(end) {
			keys = append(keys, key)
			delete(r.ends, key)
		}
	}
	return keys
}

func (r *endingRows) last(key string, ttl time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if end := time.Now().Add(ttl); end.After(r.ends[key]) {
		r.ends[key] = end
	}
}

func (r *endingRows) released(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.ends, key)
}

// clearsLate looks for expired records now and then, and deletes each by its key.
//
//	the job: SELECT k FROM locks WHERE ends_at < now -> "report", whose holder has died
//	B: acquires "report", whose record has expired
//	the job: DELETE FROM locks WHERE k = 'report' -- that of B
//	C: acquires "report", beside B
//
// It takes a key that lies idle after its holder's death, and is wanted just when the job runs.
// Caught by ExclusiveAcrossTakeover, which has keys be taken over at every moment, and kept.
type clearsLate struct {
	primitives
	rows *endingRows
}

func (c clearsLate) clear(keys []string) {
	for _, key := range keys {
		if rec, err := c.Backend.(backend.Inspector).Inspect(context.Background(), key); err == nil {
			_ = c.Backend.(backend.ForceReleaser).ForceRelease(context.Background(), key, rec.Token)
		}
	}
}

// Try implements backend.Backend.
func (c clearsLate) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if keys := c.rows.expired(); len(keys) > 0 {
		time.AfterFunc(dawdling, func() { c.clear(keys) })
	}
	g, err := c.primitives.Try(ctx, req)
	if err == nil {
		c.rows.last(req.Key, req.TTL)
	}
	return g, err
}

// Renew implements backend.Backend.
func (c clearsLate) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	v, err := c.primitives.Renew(ctx, h)
	if err == nil {
		c.rows.last(h.Key, h.TTL)
	}
	return v, err
}

// Release implements backend.Backend.
func (c clearsLate) Release(ctx context.Context, h backend.Hold) error {
	err := c.primitives.Release(ctx, h)
	if err == nil {
		c.rows.released(h.Key)
	}
	return err
}
