package redislock

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/servertest"
)

// turmoil has the Lockers compete for one key for some seconds, and until it has changed
// hands often, most of the callers with little patience, while one thing after another
// happens. No two valid leases meet, tokens rise in the order of the holds, somebody is
// always served in the end, and the key is free afterwards.
func turmoil(t *testing.T, lockers []lock.Locker, faults ...func()) {
	t.Helper()
	key := uniqueKey(t)
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
	lease, err := lockers[0].Acquire(short(t, time.Minute), key)
	require.NoError(t, err)
	require.Greater(t, lease.Token(), last.Load())
	require.NoError(t, lease.Release(t.Context()))
}

// disturbing are the faults of one connection's path, each of which ends by itself.
func disturbing(p *servertest.TCPProxy) []func() {
	return []func(){
		func() { p.DropReplies(1, "evalsha") },
		func() { p.DropRequests(1, "evalsha") },
		func() { p.StallReplies(1, "evalsha") },
		func() { p.Cut() },
		func() { p.Delay(rand.N(30 * time.Millisecond)); time.Sleep(50 * time.Millisecond); p.Delay(0) },
		func() { p.Freeze(); time.Sleep(rand.N(150 * time.Millisecond)); p.Resume() },
	}
}

func TestRedlockTurmoil(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 3)
	var faults []func()
	lockers := make([]lock.Locker, 3)
	for i := range lockers {
		var clients []goredis.UniversalClient
		for _, s := range servers {
			p := servertest.Proxy(t, s.Addr())
			c := goredis.NewClient(&goredis.Options{Addr: p.Addr(), ContextTimeoutEnabled: true})
			t.Cleanup(func() { _ = c.Close() })
			clients = append(clients, c)
			faults = append(faults, disturbing(p)...)
		}
		l, err := NewRedlock(t.Context(), clients, &RedlockOptions{Lock: lock.Options{TTL: 2 * time.Second}})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		lockers[i] = l
	}
	turmoil(t, lockers, faults...)
}

func TestFairTurmoil(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	admin := clientOf(t, server)
	faults := []func(){
		func() { admin.ClientKillByFilter(context.Background(), "TYPE", "pubsub") },
		func() { admin.ScriptFlush(context.Background()) },
	}
	lockers := make([]lock.Locker, 3)
	for i := range lockers {
		p := servertest.Proxy(t, server.Addr())
		l, err := lock.Open(t.Context(), server.URLAt(p.Addr())+"?fair=true", lock.WithDefaultTTL(2*time.Second))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		lockers[i] = l
		faults = append(faults, disturbing(p)...)
	}
	turmoil(t, lockers, faults...)
}

// TestRedlockSlowNetwork: a node behind a slow line counts as failed and costs
// nothing; two of three make it unavailable, and not held.
func TestRedlockSlowNetwork(t *testing.T) {
	t.Parallel()
	var clients []goredis.UniversalClient
	var lines []*servertest.TCPProxy
	for _, s := range nodeSet(t, 3) {
		p := servertest.Proxy(t, s.Addr())
		c := goredis.NewClient(&goredis.Options{Addr: p.Addr(), ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = c.Close() })
		lines, clients = append(lines, p), append(clients, c)
	}
	l, err := NewRedlock(t.Context(), clients, &RedlockOptions{Lock: lock.Options{TTL: 2 * ttl}, NodeTimeout: 2 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	const delay = 4 * time.Second
	lines[0].Delay(delay)
	lease, err := l.TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, lease.Renew(t.Context()))
	}
	lines[1].Delay(delay)
	_, err = l.TryAcquire(t.Context(), "other")
	require.ErrorIs(t, err, lock.ErrUnavailable)
	require.NotErrorIs(t, err, lock.ErrHeld)
	lines[0].Delay(0)
	lines[1].Delay(0)
	eventually(t, "they vote again", func() bool { return lease.Renew(t.Context()) == nil })
	require.NoError(t, lease.Release(t.Context()))
	other, err := l.Acquire(short(t, time.Minute), "other")
	require.NoError(t, err)
	require.NoError(t, other.Release(t.Context()))
}
