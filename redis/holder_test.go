package redislock

import (
	"context"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

// TestFlushUnderAHolder: a holder whose record goes with everything else on the server
// is told by its next renewal, not at its deadline, and takes nothing from who gets the
// key.
func TestFlushUnderAHolder(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	c := redistest.Client(t, server)
	key := backendtest.UniqueKey(t)
	l, err := New(t.Context(), c, &Options{Lock: lock.Options{TTL: ttl}})
	require.NoError(t, err)
	defer l.Close()
	held, err := l.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, c.FlushAll(t.Context()).Err())
	next, err := l.TryAcquire(t.Context(), key, lock.WithTTL(time.Minute))
	require.NoError(t, err)
	require.Greater(t, next.Token(), held.Token())
	<-held.Context().Done()
	require.ErrorIs(t, context.Cause(held.Context()), lock.ErrTakenOver)
	require.ErrorIs(t, held.Release(t.Context()), lock.ErrNotHeld)
	require.NoError(t, next.Release(t.Context()))
}

// TestWorkExhaustsThePool: a holder whose own work uses up the pool that the lock
// shares with it cannot renew, and is told before anybody else gets the key.
func TestWorkExhaustsThePool(t *testing.T) {
	t.Parallel()
	server := servertest.SharedRedis(t)
	c := goredis.NewClient(&goredis.Options{Addr: server.Addr(), Password: server.Password(), PoolSize: 2, MaxActiveConns: 2, PoolTimeout: 50 * time.Millisecond})
	t.Cleanup(func() { _ = c.Close() })
	key := backendtest.UniqueKey(t)
	l, err := New(t.Context(), c, &Options{Lock: lock.Options{TTL: time.Second}})
	require.NoError(t, err)
	other, err := New(t.Context(), redistest.Client(t, server), nil)
	require.NoError(t, err)
	defer other.Close()
	held, err := l.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	for range 2 {
		conn := c.Conn()
		defer conn.Close()
		if conn.Ping(t.Context()).Err() != nil {
			break // the lock has one of its own
		}
	}
	next, err := other.Acquire(t.Context(), key)
	require.NoError(t, err)
	require.Error(t, held.Context().Err(), "somebody else was granted the key, and the holder was not told")
	require.ErrorIs(t, context.Cause(held.Context()), lock.ErrLost)
	require.NoError(t, next.Release(t.Context()))
	_ = l.Close()
}
