package redistest

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
)

// Turmoil has the Lockers compete for one key for some seconds, and until it has changed
// hands often, most of the callers with little patience, while one thing after another
// happens. No two valid leases meet, tokens rise in the order of the holds, somebody is
// always served in the end, and the key is free afterwards.
func Turmoil(t *testing.T, lockers []lock.Locker, faults ...func()) {
	t.Helper()
	key := backendtest.UniqueKey(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const enough = 10
	start := time.Now()
	var (
		inside atomic.Pointer[lock.Lease]
		last   atomic.Uint64
		served atomic.Int64
		all    sync.WaitGroup
	)
	for _, l := range lockers {
		for caller := range 3 {
			all.Go(func() {
				for ctx.Err() == nil {
					patience := 2 * time.Second
					if caller > 0 {
						patience = rand.N(20 * time.Millisecond)
					}
					limited, stop := context.WithTimeout(ctx, patience)
					lease, err := l.Acquire(limited, key)
					stop()
					if err != nil {
						assert.NotErrorIs(t, err, lock.ErrPermanent)
						continue
					}
					other := inside.Swap(&lease)
					if other != nil && (*other).Context().Err() == nil && lease.Context().Err() == nil {
						assert.Fail(t, "two valid leases", "tokens %d and %d", (*other).Token(), lease.Token())
					}
					if before := last.Swap(lease.Token()); lease.Context().Err() == nil {
						assert.Greater(t, lease.Token(), before)
					}
					if caller == 2 {
						_ = lease.Renew(ctx) // which may race with the automatic ones
					}
					time.Sleep(rand.N(2 * time.Millisecond))
					inside.CompareAndSwap(&lease, nil)
					_ = lease.Release(ctx)
					if served.Add(1) > enough && time.Since(start) > 4*time.Second {
						cancel()
					}
				}
			})
		}
	}
	all.Go(func() {
		for ctx.Err() == nil {
			faults[rand.N(len(faults))]()
			time.Sleep(rand.N(100 * time.Millisecond))
		}
	})
	all.Wait()
	t.Logf("%d holds", served.Load())
	require.Greater(t, served.Load(), int64(enough))
	lease, err := lockers[0].Acquire(backendtest.Short(t, time.Minute), key)
	require.NoError(t, err)
	require.Greater(t, lease.Token(), last.Load())
	require.NoError(t, lease.Release(t.Context()))
}

// Disturbing are the faults of one connection's path, each of which ends by itself.
func Disturbing(p *servertest.TCPProxy) []func() {
	return []func(){
		func() { p.DropReplies(1, "evalsha") },
		func() { p.DropRequests(1, "evalsha") },
		func() { p.StallReplies(1, "evalsha") },
		func() { p.Cut() },
		func() { p.Delay(rand.N(30 * time.Millisecond)); time.Sleep(50 * time.Millisecond); p.Delay(0) },
		func() { p.Freeze(); time.Sleep(rand.N(150 * time.Millisecond)); p.Resume() },
	}
}
