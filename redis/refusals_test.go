package redislock

import (
	"context"
	"net"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

func TestReplica(t *testing.T) {
	t.Parallel()
	primary := servertest.Redis(t)
	server := servertest.Redis(t)
	c := redistest.Client(t, server)
	b := backendOn(t, c)
	key, stale, free := backendtest.UniqueKey(t), backendtest.UniqueKey(t), backendtest.UniqueKey(t)
	hold, g := backendtest.Granted(t, b, redistest.Request(key))
	multi, _ := backendtest.Granted(t, b, ownedRequest(stale, "a", ttl))

	host, port, err := net.SplitHostPort(primary.Addr())
	require.NoError(t, err)
	require.NoError(t, c.Do(t.Context(), "replicaof", host, port).Err())
	// The demoted server has lost what it held; nothing of that is proof.
	_, tryErr := b.Try(t.Context(), redistest.Request(free))
	_, renewErr := b.Renew(t.Context(), hold)
	_, multiErr := b.Renew(t.Context(), multi)
	for _, err := range []error{
		tryErr, renewErr, multiErr,
		b.Release(t.Context(), hold),
		b.Release(t.Context(), multi),
		b.ForceRelease(t.Context(), key, g.Token),
		b.RenewBatch(t.Context(), []backend.Hold{hold})[0].Err,
	} {
		require.ErrorIs(t, err, backend.ErrUnavailable)
		require.NotErrorIs(t, err, backend.ErrNotHeld)
		require.ErrorContains(t, err, "READONLY")
	}

	// A replica that has the record says READONLY too, not "held" or "not held".
	on := backendOn(t, redistest.Client(t, primary))
	backendtest.Granted(t, on, redistest.Request(free))
	backendtest.Eventually(t, "the record is replicated", func() bool {
		return c.Exists(t.Context(), namesOf(defaultPrefix, free).record()).Val() == 1
	})
	_, err = b.Try(t.Context(), redistest.Request(free))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.NotErrorIs(t, err, backend.ErrHeld)
	strange := backend.HoldOf(redistest.Request(free))
	_, err = b.Renew(t.Context(), strange)
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorIs(t, b.Release(t.Context(), strange), backend.ErrUnavailable)

	_, err = NewBackend(t.Context(), c, nil)
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, "replica")
}

func TestFullMemory(t *testing.T) {
	t.Parallel()
	c := redistest.Client(t, servertest.Redis(t))
	b := backendOn(t, c)
	one, two := backendtest.UniqueKey(t), backendtest.UniqueKey(t)
	single, _ := backendtest.Granted(t, b, redistest.Request(one))
	first, _ := backendtest.Granted(t, b, ownedRequest(two, "a", ttl))
	second, _ := backendtest.Granted(t, b, ownedRequest(two, "a", ttl))
	three, four := backendtest.UniqueKey(t), backendtest.UniqueKey(t)
	_, revoked := backendtest.Granted(t, b, redistest.Request(three))
	_, forced := backendtest.Granted(t, b, redistest.Request(four))
	require.NoError(t, c.ConfigSet(t.Context(), "maxmemory", "1").Err())

	_, err := b.Try(t.Context(), redistest.Request(backendtest.UniqueKey(t)))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, "OOM")
	// What is held goes on, and can be given back.
	for _, hold := range []backend.Hold{single, first, second} {
		_, err := b.Renew(t.Context(), hold)
		require.NoError(t, err)
	}
	for _, r := range b.RenewBatch(t.Context(), []backend.Hold{single, first, second}) {
		require.NoError(t, r.Err)
	}
	for _, hold := range []backend.Hold{single, first, second} {
		require.NoError(t, b.Release(t.Context(), hold))
	}
	// An operator can still act.
	require.NoError(t, b.Revoke(t.Context(), three, revoked.Token))
	rec, err := b.Inspect(t.Context(), three)
	require.NoError(t, err)
	require.True(t, rec.Revoked)
	require.NoError(t, b.ForceRelease(t.Context(), four, forced.Token))
	require.NoError(t, c.ConfigSet(t.Context(), "maxmemory", "0").Err())
	backendtest.Granted(t, b, redistest.Request(one))
	backendtest.Granted(t, b, redistest.Request(two))
}

func TestTooFewReplicas(t *testing.T) {
	t.Parallel()
	c := redistest.Client(t, servertest.Redis(t))
	b := backendOn(t, c)
	key := backendtest.UniqueKey(t)
	hold, _ := backendtest.Granted(t, b, redistest.Request(key))
	require.NoError(t, c.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
	_, err := b.Try(t.Context(), redistest.Request(backendtest.UniqueKey(t)))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	_, err = b.Renew(t.Context(), hold)
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorIs(t, b.Release(t.Context(), hold), backend.ErrUnavailable)
	require.NoError(t, c.ConfigSet(t.Context(), "min-replicas-to-write", "0").Err())
	require.NoError(t, b.Release(t.Context(), hold))
}

// A client that its owner closes renews nothing any more: its holds end at the next
// renewal, and not only at the deadline, and their release does not hang.
func TestClosedClientEndsItsHolds(t *testing.T) {
	t.Parallel()
	c := redistest.Client(t, servertest.SharedRedis(t))
	l, err := New(t.Context(), c, &Options{Lock: lock.Options{TTL: 6 * time.Second}})
	require.NoError(t, err)
	var leases []lock.Lease
	for range 3 { // the renewals of some are sent together
		lease, err := l.Acquire(t.Context(), backendtest.UniqueKey(t))
		require.NoError(t, err)
		leases = append(leases, lease)
	}
	require.NoError(t, c.Close())
	for _, lease := range leases {
		<-lease.Context().Done()
		require.ErrorIs(t, context.Cause(lease.Context()), lock.ErrSessionLost)
		require.ErrorIs(t, context.Cause(lease.Context()), goredis.ErrClosed)
		require.ErrorIs(t, lease.Release(t.Context()), lock.ErrLost)
	}
	_, err = l.TryAcquire(t.Context(), backendtest.UniqueKey(t))
	require.ErrorIs(t, err, lock.ErrPermanent)
	_ = l.Close() // what is left ends with its TTL
}
