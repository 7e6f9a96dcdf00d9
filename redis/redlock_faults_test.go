package redislock

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

func clientsOf(t testing.TB, servers []*servertest.Server) []goredis.UniversalClient {
	t.Helper()
	clients := make([]goredis.UniversalClient, len(servers))
	for i, s := range servers {
		clients[i] = clientOf(t, s)
	}
	return clients
}

func redlockOn(t testing.TB, servers []*servertest.Server, opts *RedlockOptions) backend.Backend {
	t.Helper()
	b, err := NewRedlockBackend(t.Context(), clientsOf(t, servers), opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func portOf(t testing.TB, s *servertest.Server) string {
	t.Helper()
	_, port, err := net.SplitHostPort(s.Addr())
	require.NoError(t, err)
	return port
}

func brief(key string, ttl time.Duration) backend.Request {
	req := request(key)
	req.TTL = ttl
	return req
}

// TestRedlockMajorityDown: three of five dead is unavailable, not contention, and a
// hold goes on until its deadline.
func TestRedlockMajorityDown(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 5)
	opts := &RedlockOptions{Lock: lock.Options{TTL: 2 * time.Second}}
	b := redlockOn(t, servers, opts)
	l, err := NewRedlock(t.Context(), clientsOf(t, servers), opts)
	require.NoError(t, err)
	defer l.Close()
	lease, err := l.TryAcquire(t.Context(), "held")
	require.NoError(t, err)
	for _, s := range servers[:3] {
		s.Kill(t)
	}
	_, err = b.Try(t.Context(), request("free"))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.NotErrorIs(t, err, backend.ErrHeld)
	_, err = NewRedlockBackend(t.Context(), clientsOf(t, servers), opts)
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, "2 of 5 nodes can be reached, and 3 are needed")
	deadline, _ := lease.Deadline()
	<-lease.Context().Done()
	require.ErrorIs(t, context.Cause(lease.Context()), lock.ErrExpired)
	require.WithinDuration(t, deadline, time.Now(), time.Second)
}

// TestRedlockFrozenNode: one node of three that stands still costs nothing, and a
// hold is renewed and released without it.
func TestRedlockFrozenNode(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 3)
	l, err := NewRedlock(t.Context(), clientsOf(t, servers), &RedlockOptions{Lock: lock.Options{TTL: 1500 * time.Millisecond}})
	require.NoError(t, err)
	defer l.Close()
	servers[1].Freeze(t)
	lease, err := l.Acquire(t.Context(), "k")
	require.NoError(t, err)
	control := time.NewTimer(4500 * time.Millisecond)
	defer control.Stop()
	for range 100 {
		other, err := l.TryAcquire(t.Context(), "other")
		require.NoError(t, err)
		require.NoError(t, other.Release(t.Context()))
	}
	select {
	case <-control.C:
	case <-lease.Context().Done():
		t.Fatalf("lost after one node froze: %v", context.Cause(lease.Context()))
	}
	require.NoError(t, lease.Release(t.Context()))
	servers[1].Resume(t)
	// What it was sent before it froze, and what it missed, leave nothing behind.
	for _, key := range []string{"k", "other"} {
		client := clientOf(t, servers[1])
		eventually(t, "the node has nothing of it", func() bool {
			again, err := l.TryAcquire(t.Context(), key)
			require.NoError(t, err)
			require.NoError(t, again.Release(t.Context()))
			n, err := client.Exists(t.Context(), defaultRedlockPrefix+"k:"+key).Result()
			return err == nil && n == 0
		})
	}
}

// TestRedlockSlowNode: a node slower than its time limit counts as failed.
func TestRedlockSlowNode(t *testing.T) {
	t.Parallel()
	d := doubleOn(t, doubleClients(t, 3), RedlockOptions{NodeTimeout: 100 * time.Millisecond})
	slow := func(do func()) { time.Sleep(300 * time.Millisecond); do() }
	d.nodes[0].set(nil, slow)
	hold, _ := granted(t, d, request("k"))
	_, err := d.Renew(t.Context(), hold)
	require.NoError(t, err)
	require.NoError(t, d.Release(t.Context(), hold))
	d.nodes[1].set(nil, slow)
	_, err = d.Try(t.Context(), request("k"))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorIs(t, err, backend.ErrOutcomeUnknown)
	d.nodes[0].up()
	d.nodes[1].up()
	eventually(t, "the slow nodes have caught up, and have nothing of it", func() bool {
		_, err := d.Inspect(t.Context(), "k")
		return d.count(t, "k") == 0 && err != nil
	})
}

// TestRedlockRestartedEmpty: a node that comes back without its data does not vote
// until a lease that it may have voted for has ended. The holder is told when a
// majority no longer has its lease, and goes on otherwise.
func TestRedlockRestartedEmpty(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 3)
	const ttl = 3 * time.Second
	opts := &RedlockOptions{Lock: lock.Options{TTL: ttl}}
	holder, rival := redlockOn(t, servers, opts), redlockOn(t, servers, opts)
	servers[2].Kill(t) // the lease is on two nodes of three
	hold, g := granted(t, holder, brief("k", ttl))
	servers[2].Restart(t, false)
	servers[1].Restart(t, false)
	asked := 0
	for ; backend.SystemClock().Now() < g.Until(); asked++ {
		_, err := rival.Try(t.Context(), brief("k", ttl))
		if backend.SystemClock().Now() >= g.Until() {
			break
		}
		require.Error(t, err, "two nodes that had lost their data let a rival in before the holder's deadline")
		time.Sleep(20 * time.Millisecond)
	}
	require.Positive(t, asked)
	_, err := holder.Renew(t.Context(), hold)
	require.ErrorIs(t, err, backend.ErrNotHeld)
	eventually(t, "the nodes vote again", func() bool {
		_, err := rival.Try(t.Context(), brief("k", ttl))
		return err == nil
	})
}

// TestRedlockRestartedWithData: a node that kept its data votes at once.
func TestRedlockRestartedWithData(t *testing.T) {
	t.Parallel()
	servers := []*servertest.Server{
		servertest.Redis(t, servertest.WithPersistence()), servertest.Redis(t, servertest.WithControl()), servertest.Redis(t, servertest.WithControl()),
	}
	firstUse(t, servers)
	b := redlockOn(t, servers, nil)
	hold, _ := granted(t, b, request("k"))
	first := clientOf(t, servers[0])
	eventually(t, "the first node has it too, which a grant does not wait for", func() bool {
		return first.Exists(t.Context(), defaultRedlockPrefix+"k:k").Val() == 1
	})
	servers[0].Restart(t, true)
	servers[2].Kill(t)
	eventually(t, "it is renewed", func() bool {
		_, err := b.Renew(t.Context(), hold)
		if err != nil {
			t.Log(err)
		}
		require.NotErrorIs(t, err, backend.ErrNotHeld)
		return err == nil
	})
	eventually(t, "another key is granted", func() bool {
		_, err := b.Try(t.Context(), request("other"))
		return err == nil
	})
}

// TestRedlockSnapshotRestart: a node that comes back with an old snapshot has its
// mark, and lacks the newest votes.
func TestRedlockSnapshotRestart(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 3)
	opts := &RedlockOptions{RestartDelay: time.Minute}
	b := redlockOn(t, servers, opts)
	client := clientOf(t, servers[0])
	require.NoError(t, client.Save(t.Context()).Err())
	servers[1].Kill(t)
	granted(t, b, request("k"))
	servers[0].Restart(t, true)
	n, err := client.Exists(t.Context(), defaultRedlockPrefix+"node").Result()
	require.NoError(t, err)
	require.EqualValues(t, 1, n, "the node has its mark again")
	servers[1].Restart(t, false)
	rival := redlockOn(t, servers, opts)
	_, err = rival.Try(t.Context(), request("k"))
	require.Error(t, err)
}

func TestRedlockRefusedSets(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 3)
	clients := clientsOf(t, servers)
	client := func(s *servertest.Server) goredis.UniversalClient { return clientOf(t, s) }
	open := func(clients ...goredis.UniversalClient) error {
		b, err := NewRedlockBackend(t.Context(), clients, nil)
		if err == nil {
			_ = b.Close()
		}
		return err
	}
	require.ErrorIs(t, open(), backend.ErrInvalid)
	eight := make([]goredis.UniversalClient, 8)
	for i := range eight {
		eight[i] = clients[0]
	}
	require.ErrorIs(t, open(eight...), backend.ErrInvalid)
	require.ErrorIs(t, open(clients[0], nil, clients[1]), backend.ErrInvalid)
	require.ErrorIs(t, open(clients[0], clients[1], clients[0]), backend.ErrInvalid)

	other := goredis.NewClient(&goredis.Options{Addr: "localhost:" + portOf(t, servers[0])})
	defer other.Close()
	err := open(clients[0], clients[1], other)
	require.ErrorIs(t, err, backend.ErrInvalid)
	require.ErrorContains(t, err, "are the same server")

	cluster := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{servers[0].Addr()}})
	defer cluster.Close()
	require.ErrorIs(t, open(clients[0], clients[1], cluster), backend.ErrUnsupported)
	sentinel := goredis.NewFailoverClient(&goredis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"127.0.0.1:1"}})
	defer sentinel.Close()
	require.ErrorIs(t, open(clients[0], clients[1], sentinel), backend.ErrUnsupported)

	secret := servertest.Redis(t, servertest.WithPassword("sesame"))
	without := goredis.NewClient(&goredis.Options{Addr: secret.Addr()})
	defer without.Close()
	require.ErrorIs(t, open(clients[0], clients[1], without), backend.ErrPermanent)
	require.NoError(t, open(clients[0], clients[1], client(secret)))

	require.NoError(t, clients[2].Do(t.Context(), "replicaof", "127.0.0.1", portOf(t, servers[0])).Err())
	err = open(clients...)
	require.ErrorIs(t, err, backend.ErrPermanent)
	require.ErrorContains(t, err, "replica")
	require.NoError(t, clients[2].Do(t.Context(), "replicaof", "no", "one").Err())

	member := servertest.Redis(t, servertest.WithArgs("--cluster-enabled", "yes"))
	err = open(clients[0], clients[1], client(member))
	require.ErrorIs(t, err, backend.ErrPermanent)
	require.ErrorContains(t, err, "Cluster")

	// A minority that can't be reached is a warning, and so is an even number.
	servers[2].Kill(t)
	var log bytes.Buffer
	b, err := NewRedlockBackend(t.Context(), append(clients, client(secret)), &RedlockOptions{Lock: lock.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}})
	require.NoError(t, err)
	require.NoError(t, b.Close())
	assert.Contains(t, log.String(), "a node can't be reached")
	assert.Contains(t, log.String(), "an even number of nodes")
	assert.Contains(t, log.String(), "append-only file")
}
