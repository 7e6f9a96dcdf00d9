package redlock

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

func clientsOf(t testing.TB, servers []*servertest.Server) []goredis.UniversalClient {
	t.Helper()
	clients := make([]goredis.UniversalClient, len(servers))
	for i, s := range servers {
		clients[i] = redistest.Client(t, s)
	}
	return clients
}

func backendOn(t testing.TB, servers []*servertest.Server, opts *Options) backend.Backend {
	t.Helper()
	b := backendtest.Opened(t, func() (backend.Backend, error) { return NewBackend(t.Context(), clientsOf(t, servers), opts) })
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func portOf(t testing.TB, s *servertest.Server) string {
	t.Helper()
	_, port, err := net.SplitHostPort(s.Addr())
	require.NoError(t, err)
	return port
}

// TestMajorityDown: three of five dead is unavailable, not contention, and a
// hold goes on until its deadline.
func TestMajorityDown(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 5)
	opts := unhurried(Options{Lock: lock.Options{TTL: 4 * time.Second}})
	b := backendOn(t, servers, opts)
	l, err := New(t.Context(), clientsOf(t, servers), opts)
	require.NoError(t, err)
	defer l.Close()
	lease, err := l.TryAcquire(t.Context(), "held")
	require.NoError(t, err)
	ended := redistest.Expiry(t, lease)
	for _, s := range servers[:3] {
		s.Kill(t)
	}
	_, err = b.Try(t.Context(), redistest.Request("free"))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.NotErrorIs(t, err, backend.ErrHeld)
	_, err = NewBackend(t.Context(), clientsOf(t, servers), opts)
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, "2 of 5 nodes can be reached, and 3 are needed")
	ended()
	backendtest.Eventually(t, "the reason is told although the nodes were not asked", func() bool {
		_, err = b.Try(t.Context(), redistest.Request("free"))
		require.ErrorIs(t, err, backend.ErrUnavailable)
		return strings.Count(err.Error(), "connection refused") == 3 && strings.Contains(err.Error(), "was not asked, since the last request failed: dial tcp "+servers[0].Addr())
	})
}

// TestFrozenNode: one node of three that stands still costs nothing, and a
// hold is renewed and released without it.
func TestFrozenNode(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 3)
	const ttl = 6 * time.Second
	l, err := New(t.Context(), clientsOf(t, servers), unhurried(Options{Lock: lock.Options{TTL: ttl}}))
	require.NoError(t, err)
	defer l.Close()
	servers[1].Freeze(t)
	lease, err := l.Acquire(t.Context(), "k")
	require.NoError(t, err)
	control := time.NewTimer(ttl + ttl/3)
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
		client := redistest.Client(t, servers[1])
		backendtest.Eventually(t, "the node has nothing of it", func() bool {
			again, err := l.TryAcquire(t.Context(), key)
			require.NoError(t, err)
			require.NoError(t, again.Release(t.Context()))
			n, err := client.Exists(t.Context(), defaultPrefix+"k:"+key).Result()
			return err == nil && n == 0
		})
	}
}

// TestSlowNode: a node slower than its time limit counts as failed.
func TestSlowNode(t *testing.T) {
	t.Parallel()
	d := doubleOn(t, doubleClients(t, 3), Options{NodeTimeout: 2 * time.Second})
	first := d.nodes[0].stall()
	hold, _ := backendtest.Granted(t, d, redistest.Request("k"))
	_, err := d.Renew(t.Context(), hold)
	require.NoError(t, err)
	require.NoError(t, d.Release(t.Context(), hold))
	second := d.nodes[1].stall()
	_, err = d.Try(t.Context(), redistest.Request("k"))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorIs(t, err, backend.ErrOutcomeUnknown)
	first()
	second()
	backendtest.Eventually(t, "the slow nodes have caught up, and have nothing of it", func() bool {
		_, err := d.Inspect(t.Context(), "k")
		return d.count(t, "k") == 0 && err != nil
	})
}

// TestRestartedEmpty: a node that comes back without its data does not vote
// until a lease that it may have voted for has ended. The holder is told when a
// majority no longer has its lease, and goes on otherwise.
func TestRestartedEmpty(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 3)
	const ttl = 5 * time.Second
	opts := unhurried(Options{Lock: lock.Options{TTL: ttl}})
	holder, rival := backendOn(t, servers, opts), backendOn(t, servers, opts)
	servers[2].Kill(t) // the lease is on two nodes of three
	hold, g := backendtest.Granted(t, holder, redistest.Brief("k", ttl))
	servers[2].Restart(t, false)
	servers[1].Restart(t, false)
	asked := 0
	for ; backend.SystemClock().Now() < g.Until(); asked++ {
		_, err := rival.Try(t.Context(), redistest.Brief("k", ttl))
		if backend.SystemClock().Now() >= g.Until() {
			break
		}
		require.Error(t, err, "two nodes that had lost their data let a rival in before the holder's deadline")
		time.Sleep(50 * time.Millisecond)
	}
	require.Positive(t, asked)
	_, err := holder.Renew(t.Context(), hold)
	require.ErrorIs(t, err, backend.ErrNotHeld)
	backendtest.Eventually(t, "the nodes vote again", func() bool {
		_, err := rival.Try(t.Context(), redistest.Brief("k", ttl))
		return err == nil
	})
}

// TestRestartedWithData: a node that kept its data votes at once.
func TestRestartedWithData(t *testing.T) {
	t.Parallel()
	servers := []*servertest.Server{
		servertest.Redis(t, servertest.WithPersistence()), servertest.Redis(t, servertest.WithControl()), servertest.Redis(t, servertest.WithControl()),
	}
	firstUse(t, servers)
	b := backendOn(t, servers, unhurried(Options{}))
	hold, g := backendtest.Granted(t, b, redistest.Request("k"))
	first := redistest.Client(t, servers[0])
	backendtest.Eventually(t, "the first node has it too, which a grant does not wait for", func() bool {
		return first.Exists(t.Context(), defaultPrefix+"k:k").Val() == 1
	})
	servers[0].Restart(t, true)
	servers[2].Kill(t)
	backendtest.Eventually(t, "it is renewed", func() bool {
		_, err := b.Renew(t.Context(), hold)
		if err != nil {
			t.Log(err)
		}
		require.NotErrorIs(t, err, backend.ErrNotHeld)
		return err == nil
	})
	backendtest.Eventually(t, "another key is granted", func() bool {
		_, err := b.Try(t.Context(), redistest.Request("other"))
		return err == nil
	})
	require.NoError(t, b.Release(t.Context(), hold))
	_, next := backendtest.Granted(t, b, redistest.Request("k"))
	require.Greater(t, next.Token, g.Token)
}

// TestSnapshotRestart: a node that comes back with an old snapshot has its
// mark, and lacks the newest votes.
func TestSnapshotRestart(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 3)
	opts := unhurried(Options{RestartDelay: time.Minute})
	b := backendOn(t, servers, opts)
	client := redistest.Client(t, servers[0])
	require.NoError(t, client.Save(t.Context()).Err())
	servers[1].Kill(t)
	backendtest.Granted(t, b, redistest.Request("k"))
	servers[0].Restart(t, true)
	n, err := client.Exists(t.Context(), defaultPrefix+"node").Result()
	require.NoError(t, err)
	require.EqualValues(t, 1, n, "the node has its mark again")
	servers[1].Restart(t, false)
	rival := backendOn(t, servers, opts)
	_, err = rival.Try(t.Context(), redistest.Request("k"))
	require.Error(t, err)
}

func TestRefusedSets(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 3)
	clients := clientsOf(t, servers)
	client := func(s *servertest.Server) goredis.UniversalClient { return redistest.Client(t, s) }
	open := func(clients ...goredis.UniversalClient) error {
		b, err := NewBackend(t.Context(), clients, nil)
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
	b, err := NewBackend(t.Context(), append(clients, client(secret)), &Options{Lock: lock.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}})
	require.NoError(t, err)
	require.NoError(t, b.Close())
	assert.Contains(t, log.String(), "a node can't be reached")
	assert.Contains(t, log.String(), "an even number of nodes")
	assert.Contains(t, log.String(), "append-only file")
}

// TestQuorumSpeed: a node that takes requests and never answers delays nothing
// while the others decide, and otherwise for no longer than a node has to answer.
func TestQuorumSpeed(t *testing.T) {
	t.Parallel()
	const limit, ttl = 5 * time.Second, time.Minute
	d := doubleOn(t, doubleClients(t, 5), Options{NodeTimeout: limit})
	defer d.nodes[0].stall()()
	timed := func(what string, bound time.Duration, f func()) {
		began := time.Now()
		f()
		assert.Less(t, time.Since(began), bound, what)
	}
	var hold backend.Hold
	timed("it is granted", limit, func() { hold, _ = backendtest.Granted(t, d, redistest.Brief("k", ttl)) })
	timed("it is renewed", limit, func() {
		_, err := d.Renew(t.Context(), hold)
		require.NoError(t, err)
	})
	timed("others are refused", limit, func() {
		_, err := d.Try(t.Context(), redistest.Brief("k", ttl))
		require.ErrorIs(t, err, backend.ErrHeld)
	})
	timed("it is released", limit, func() { require.NoError(t, d.Release(t.Context(), hold)) })
	defer d.nodes[1].stall()()
	d.nodes[2].down()
	timed("it is decided when the nodes have had their time, once", 2*limit, func() {
		_, err := d.Try(t.Context(), redistest.Brief("other", ttl))
		require.ErrorIs(t, err, backend.ErrUnavailable)
		require.ErrorIs(t, err, backend.ErrOutcomeUnknown)
	})
}

// TestClosedClients: when so many clients were closed by their owner that no
// majority is left, no renewal can succeed any more: the holds end at the next one, and
// not only at the deadline. A minority is one of the failures that are tolerated.
func TestClosedClients(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 3)
	open := func() (*lock.Client, []goredis.UniversalClient, []lock.Lease) {
		clients := clientsOf(t, servers)
		l, err := New(t.Context(), clients, unhurried(Options{Lock: lock.Options{TTL: 6 * time.Second}}))
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		var leases []lock.Lease
		for range 3 {
			lease, err := l.Acquire(t.Context(), backendtest.UniqueKey(t))
			require.NoError(t, err)
			leases = append(leases, lease)
		}
		return l, clients, leases
	}
	for closed := 2; closed <= 3; closed++ {
		l, clients, leases := open()
		for _, c := range clients[:closed] {
			require.NoError(t, c.Close())
		}
		for _, lease := range leases {
			<-lease.Context().Done()
			require.ErrorIs(t, context.Cause(lease.Context()), lock.ErrSessionLost, "%d closed", closed)
			require.ErrorIs(t, lease.Release(t.Context()), lock.ErrLost, "%d closed", closed)
		}
		_, err := l.TryAcquire(t.Context(), backendtest.UniqueKey(t))
		require.Error(t, err)
	}
	_, clients, leases := open()
	require.NoError(t, clients[0].Close())
	for _, lease := range leases {
		require.NoError(t, lease.Renew(t.Context()))
		require.NoError(t, lease.Release(t.Context()))
	}
}

// TestServerGivenTwice: a server that is given under a second address, which could
// not be reached at the opening, has one vote.
func TestServerGivenTwice(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 2)
	second := servertest.Proxy(t, servers[0].Addr())
	second.Refuse()
	clients := clientsOf(t, servers)
	again := goredis.NewClient(&goredis.Options{Addr: second.Addr(), Password: servers[0].Password()})
	t.Cleanup(func() { _ = again.Close() })
	b, err := NewBackend(t.Context(), append(clients, again), unhurried(Options{}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	backendtest.Granted(t, b, redistest.Request(backendtest.UniqueKey(t)))
	second.Accept(t)
	servers[1].Kill(t)
	backendtest.Eventually(t, "it is noticed that the server is given twice", func() bool {
		_, err := b.Try(t.Context(), redistest.Request(backendtest.UniqueKey(t)))
		require.ErrorIs(t, err, backend.ErrUnavailable, "one server of two made up a majority")
		return strings.Contains(err.Error(), "is the same server as another node")
	})
	// The first address is not blamed, and goes on.
	servers[1].Restart(t, true)
	backendtest.Eventually(t, "the two servers are a majority", func() bool {
		_, err := b.Try(t.Context(), redistest.Request(backendtest.UniqueKey(t)))
		return err == nil || strings.Contains(err.Error(), servers[1].Addr()+": is new")
	})
}

// lateServer loses the first request for a key; it arrives on its old connection, behind
// what is sent next on a new one.
type lateServer struct {
	server
	grant any // the hash of the script

	mu   sync.Mutex
	late []*call
	done bool
}

func (l *lateServer) do(ctx context.Context, calls []*call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	isGrant := func(c *call) bool { return c.script.Hash == l.grant }
	if l.late == nil && slices.ContainsFunc(calls, isGrant) {
		for _, c := range calls {
			l.late = append(l.late, &call{script: c.script, args: c.args})
			c.err = os.ErrDeadlineExceeded
		}
		return
	}
	l.server.do(ctx, calls)
	l.arrive(ctx)
}

// arrive delivers what was late, if that has not happened. The caller has the mutex.
func (l *lateServer) arrive(ctx context.Context) {
	if l.late != nil && !l.done {
		l.done = true
		l.server.do(ctx, l.late)
	}
}

// TestLateGrantOfAnEarlierAttempt: a request of an earlier attempt that arrives
// behind the one that counted does not make its vote one of the earlier attempt, which
// is being cleared away.
func TestLateGrantOfAnEarlierAttempt(t *testing.T) {
	t.Parallel()
	d := doubleOn(t, doubleClients(t, 3), Options{})
	inOneRound(t, d)
	d.rival(t, "k", 2)
	late := &lateServer{server: d.nodes[1].server, grant: d.grant.Hash}
	d.settle(t.Context()) // the node has nothing to do
	n := d.majority.nodes[1]
	n.server, n.timeout = late, 20*time.Millisecond // for which it is left alone after a failure
	req := redistest.Request("k")
	backendtest.Eventually(t, "a later attempt is granted", func() bool {
		_, err := d.Try(t.Context(), req)
		if err != nil { // the node was left alone until the call was over
			require.ErrorIs(t, err, backend.ErrUnavailable)
		}
		return err == nil
	})
	backendtest.Eventually(t, "the attempt that counts has asked every node", func() bool { return d.count(t, "k") == 3 })
	late.mu.Lock()
	require.NotNil(t, late.late)
	late.arrive(t.Context()) // where nothing was sent to that node since
	late.mu.Unlock()
	d.settle(t.Context()) // the releases have arrived, and should not have an effect
	require.Equal(t, 3, d.count(t, "k"))
}
