package flawed

import (
	"context"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
)

var z159 = Lock{
	ID: "Z159", Title: "a clean-up that takes the counters along",
	Summary: "A key that was not used for a month begins with token 1 again, and its resource refuses the holder.",
	Seen:    "DELETE FROM locks WHERE updated_at < ..., with the token in the same row.",
	Instead: "Write the largest token that is removed down as a floor for all keys.",
	File:    "clean_takes_counters.go", Over: Memory,
	Rule: "CleanupByAge",
	On:   onRows(func(r *keptRows) backend.Backend { return cleansCounters{r} }),
}

// cleansCounters counts the tokens of a key in its row, and removes rows by their age.
//
//	the monthly job had the token 900
//	cleanup --older-than 30d: its row is gone
//	the monthly job: token 1; the store that it writes to has seen 900
//
// Caught by CleanupByAge.
type cleansCounters struct{ *keptRows }

// counterRow is the row of a key.
type counterRow struct {
	mu    sync.Mutex
	used  time.Time
	grant uint64 // memlock's token of the last grant
	last  uint64
}

// Try implements backend.Backend.
func (c cleansCounters) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := c.primitives.Try(ctx, req)
	if err != nil {
		return g, err
	}
	stored, _ := c.kept.LoadOrStore(req.Key, &counterRow{})
	row := stored.(*counterRow)
	row.mu.Lock()
	defer row.mu.Unlock()
	row.used = time.Now()
	if g.Token != row.grant {
		row.grant, row.last = g.Token, row.last+1
	}
	g.Token = row.last
	return g, nil
}

// Cleanup implements backend.Cleaner.
func (c cleansCounters) Cleanup(ctx context.Context, olderThan time.Duration, dryRun bool) (n int, err error) {
	if olderThan <= 0 {
		return 0, backend.ErrInvalid
	}
	c.kept.Range(func(key, stored any) bool {
		row := stored.(*counterRow)
		row.mu.Lock()
		old := time.Since(row.used) > olderThan
		row.mu.Unlock()
		if _, free := c.Backend.(backend.Inspector).Inspect(ctx, key.(string)); free == nil || !old {
			return true
		}
		n++
		if !dryRun {
			c.kept.Delete(key)
		}
		return true
	})
	return n, ctx.Err()
}
