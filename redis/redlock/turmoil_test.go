package redlock

import (
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

func TestTurmoil(t *testing.T) {
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
			faults = append(faults, redistest.Disturbing(p)...)
		}
		l, err := New(t.Context(), clients, &Options{Lock: lock.Options{TTL: 2 * time.Second}})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		lockers[i] = l
	}
	redistest.Turmoil(t, lockers, faults...)
}

// TestSlowNetwork: a node behind a slow line counts as failed and costs
// nothing; two of three make it unavailable, and not held.
func TestSlowNetwork(t *testing.T) {
	t.Parallel()
	var clients []goredis.UniversalClient
	var lines []*servertest.TCPProxy
	for _, s := range nodeSet(t, 3) {
		p := servertest.Proxy(t, s.Addr())
		c := goredis.NewClient(&goredis.Options{Addr: p.Addr(), ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = c.Close() })
		lines, clients = append(lines, p), append(clients, c)
	}
	l, err := New(t.Context(), clients, &Options{Lock: lock.Options{TTL: 2 * ttl}, NodeTimeout: 2 * time.Second})
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
	backendtest.Eventually(t, "they vote again", func() bool { return lease.Renew(t.Context()) == nil })
	require.NoError(t, lease.Release(t.Context()))
	other, err := l.Acquire(backendtest.Short(t, time.Minute), "other")
	require.NoError(t, err)
	require.NoError(t, other.Release(t.Context()))
}
