package redislock

import (
	"context"
	"net"
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
	"github.com/mortiselock/lock/redis/internal/wire"
)

// switched is a primary with a replica, behind one address.
type switched struct {
	address  string
	old, new *goredis.Client
	host     string // of the new primary
	port     string
	lead     func()
}

func switchable(t *testing.T) switched {
	t.Helper()
	first, second := servertest.Redis(t), servertest.Redis(t)
	p := newProxy(t, first.Addr())
	s := switched{address: p.addr, old: redistest.Client(t, first), new: redistest.Client(t, second), lead: func() { to := second.Addr(); p.target.Store(&to) }}
	host, port, err := net.SplitHostPort(first.Addr())
	require.NoError(t, err)
	require.NoError(t, s.new.Do(t.Context(), "replicaof", host, port).Err())
	s.host, s.port, err = net.SplitHostPort(second.Addr())
	require.NoError(t, err)
	backendtest.Eventually(t, "the replica is in step", func() bool {
		return strings.Contains(s.old.Info(t.Context(), "replication").Val(), "state=online")
	})
	return s
}

// over makes the replica the primary and the primary its replica. The address leads to
// the new one, and the connections that there are stay open.
func (s switched) over(t *testing.T) {
	t.Helper()
	written := s.old.Incr(t.Context(), "written").Val()
	backendtest.Eventually(t, "the replica has everything", func() bool {
		n, _ := s.new.Get(t.Context(), "written").Int64()
		return n == written
	})
	s.lead()
	require.NoError(t, s.new.Do(t.Context(), "replicaof", "no", "one").Err())
	require.NoError(t, s.old.Do(t.Context(), "replicaof", s.host, s.port).Err())
}

// TestSwitchover: the leases go on at the new primary, and so do those who wait and
// those who ask, though connections to the old one stay open.
func TestSwitchover(t *testing.T) {
	t.Parallel()
	s := switchable(t)
	const ttl = 12 * time.Second
	type users struct {
		l      lock.Locker
		leases []lock.Lease
		next   chan lock.Lease
	}
	var both []*users
	for _, parameters := range []string{"", "?fair=true"} {
		open := func() lock.Locker {
			l, err := lock.Open(t.Context(), "redis://"+s.address+parameters, &lock.Options{TTL: ttl})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, l.Close()) })
			return l
		}
		const holds = 60
		u, other := &users{l: open(), leases: make([]lock.Lease, holds), next: make(chan lock.Lease, 1)}, open()
		both = append(both, u)
		var all sync.WaitGroup
		for i := range u.leases { // together, so that there are many connections
			all.Go(func() {
				var err error
				u.leases[i], err = u.l.Acquire(t.Context(), backendtest.UniqueKey(t))
				assert.NoError(t, err)
			})
		}
		all.Wait()
		go func() {
			defer close(u.next)
			if lease, err := other.Acquire(t.Context(), u.leases[0].Key()); assert.NoError(t, err) {
				u.next <- lease
			}
		}()
	}
	s.over(t)
	for _, u := range both {
		_, err := u.l.TryAcquire(t.Context(), u.leases[1].Key())
		require.ErrorIs(t, err, lock.ErrHeld, "the new primary has the record, and says so")
		free, err := u.l.TryAcquire(t.Context(), backendtest.UniqueKey(t))
		require.NoError(t, err)
		require.NoError(t, free.Release(t.Context()))
		name, err := GuardedKey(u.leases[2], "switched")
		require.NoError(t, err)
		_, err = GuardedSet.Run(t.Context(), u.leases[2], []string{name}, "yes")
		require.NoError(t, err)
		require.Equal(t, "yes", s.new.Get(t.Context(), name).Val())
	}
	// All have been renewed there when their TTL has passed.
	wait := time.NewTimer(ttl + ttl/3)
	defer wait.Stop()
	<-wait.C
	for _, u := range both {
		for _, lease := range u.leases {
			require.NoError(t, lease.Context().Err())
		}
		require.NoError(t, u.leases[0].Release(t.Context()))
		got := <-u.next
		require.NotNil(t, got)
		require.Greater(t, got.Token(), u.leases[0].Token())
		for _, lease := range append(u.leases[1:], got) {
			require.NoError(t, lease.Release(t.Context()))
		}
	}
}

// TestSwitchoverOfPipelines: commands that go together find the new primary too, however
// many connections to the old one the pool has.
func TestSwitchoverOfPipelines(t *testing.T) {
	t.Parallel()
	s := switchable(t)
	c := goredis.NewClient(&goredis.Options{Addr: s.address})
	t.Cleanup(func() { _ = c.Close() })
	b := backendOn(t, c)
	var holds []backend.Hold
	for range 20 {
		hold, _ := backendtest.Granted(t, b, redistest.Request(backendtest.UniqueKey(t)))
		holds = append(holds, hold)
	}
	const busy = 6
	require.NoError(t, s.old.Do(t.Context(), "client", "pause", time.Minute.Milliseconds(), "write").Err())
	var all sync.WaitGroup
	for range busy {
		all.Go(func() {
			for _, r := range b.RenewBatch(t.Context(), holds) {
				assert.NoError(t, r.Err)
			}
		})
	}
	backendtest.Eventually(t, "each has a connection", func() bool {
		pool := c.PoolStats().PipelineStats
		return pool.TotalConns-pool.IdleConns == busy
	})
	require.NoError(t, s.old.Do(t.Context(), "client", "unpause").Err())
	all.Wait()
	s.over(t)
	for _, r := range b.RenewBatch(t.Context(), holds) {
		require.NoError(t, r.Err)
	}
	// What another client does at the new primary is seen.
	require.NoError(t, backendOn(t, s.new).Release(t.Context(), holds[0]))
	require.ErrorIs(t, b.RenewBatch(t.Context(), holds[:2])[0].Err, backend.ErrNotHeld)
}

// TestDemotedPrimary: where the address leads to no other server, the holder and those
// who ask are told of a server that takes no writes, and the hold ends at its deadline.
func TestDemotedPrimary(t *testing.T) {
	t.Parallel()
	primary := servertest.Redis(t)
	server := servertest.Redis(t)
	l, err := lock.Open(t.Context(), server.URL(), &lock.Options{TTL: 5 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	lease, err := l.Acquire(t.Context(), backendtest.UniqueKey(t))
	require.NoError(t, err)
	host, port, err := net.SplitHostPort(primary.Addr())
	require.NoError(t, err)
	c := redistest.Client(t, server)
	require.NoError(t, c.Do(t.Context(), "replicaof", host, port).Err())
	_, err = l.TryAcquire(t.Context(), backendtest.UniqueKey(t))
	require.ErrorIs(t, err, lock.ErrUnavailable)
	require.ErrorContains(t, err, "READONLY")
	require.ErrorIs(t, lease.Renew(t.Context()), lock.ErrUnavailable)
	<-lease.Context().Done()
	require.ErrorIs(t, context.Cause(lease.Context()), lock.ErrExpired)
}

// stays reports the loss of a lease until one of its TTLs has passed.
func stays(t *testing.T, ttl time.Duration, leases ...lock.Lease) {
	t.Helper()
	wait := time.NewTimer(ttl + ttl/3)
	defer wait.Stop()
	<-wait.C
	for _, lease := range leases {
		require.NoError(t, lease.Context().Err())
		require.NoError(t, lease.Renew(t.Context()))
	}
}

// TestSentinelSwitchover: an operator has the replica take over, and the old primary goes
// on as its replica.
func TestSentinelSwitchover(t *testing.T) {
	t.Parallel()
	w := sentinels(t)
	const ttl = 9 * time.Second
	l, err := lock.Open(t.Context(), w.url(""), &lock.Options{TTL: ttl})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	var leases []lock.Lease
	for range 20 {
		lease, err := l.Acquire(t.Context(), backendtest.UniqueKey(t))
		require.NoError(t, err)
		leases = append(leases, lease)
	}
	host, _, _ := strings.Cut(w.hosts, ",")
	sentinel := goredis.NewSentinelClient(&goredis.Options{Addr: host})
	t.Cleanup(func() { _ = sentinel.Close() })
	require.NoError(t, sentinel.Failover(t.Context(), "main").Err())
	w.promoted(t)
	stays(t, ttl, leases...)
	require.Equal(t, "slave", wire.InfoFields(redistest.Client(t, w.primary).Info(t.Context(), "replication").Val())["role"])
}

// TestClusterSwitchover: a replica takes the slots of its primary over, which stays as
// its replica.
func TestClusterSwitchover(t *testing.T) {
	t.Parallel()
	addrs, servers := clusterOf(t, 3)
	replica := servertest.Redis(t, servertest.WithArgs("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-require-full-coverage", "no"))
	c, first := redistest.Client(t, replica), redistest.Client(t, servers[0])
	host, port, err := net.SplitHostPort(addrs[0])
	require.NoError(t, err)
	require.NoError(t, c.ClusterMeet(t.Context(), host, port).Err())
	id, err := first.ClusterMyID(t.Context()).Result()
	require.NoError(t, err)
	backendtest.Eventually(t, "the replica knows its primary", func() bool { return c.ClusterReplicate(t.Context(), id).Err() == nil })
	backendtest.Eventually(t, "the replica is in step", func() bool {
		return strings.Contains(first.Info(t.Context(), "replication").Val(), "state=online")
	})
	const ttl = 9 * time.Second
	l := clusterLocker(t, addrs, ttl, "")
	var leases []lock.Lease
	for range 20 {
		lease, err := l.Acquire(t.Context(), keyOn(t, first, 0, 3))
		require.NoError(t, err)
		leases = append(leases, lease)
	}
	var asked time.Time
	backendtest.Eventually(t, "the replica takes over", func() bool {
		// It has five seconds, and is begun anew by each command.
		if time.Since(asked) > 6*time.Second && c.ClusterFailover(t.Context()).Err() == nil {
			asked = time.Now()
		}
		return wire.InfoFields(c.Info(t.Context(), "replication").Val())["role"] == "master"
	})
	stays(t, ttl, leases...)
	require.Equal(t, "slave", wire.InfoFields(first.Info(t.Context(), "replication").Val())["role"])
}

// A server that takes no writes is not connected to once for each connection of the pool.
func TestReadOnlyIsBelievedOnNewConnection(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	b, p, direct := linedTo(t, server)
	var busy sync.WaitGroup
	for range 5 {
		busy.Go(func() { b.client.BLPop(t.Context(), 100*time.Millisecond, "nothing") })
	}
	busy.Wait()
	_, connections := dials(b.client.(*goredis.Client))
	require.Positive(t, connections)
	hold, _ := backendtest.Granted(t, b, redistest.Request(backendtest.UniqueKey(t)))
	require.NoError(t, b.Release(t.Context(), hold))
	require.NoError(t, direct.client.(*goredis.Client).Do(t.Context(), "replicaof", "127.0.0.1", "1").Err())
	before := p.Accepted()
	_, err := b.Try(t.Context(), redistest.Request(backendtest.UniqueKey(t)))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, "READONLY")
	require.Equal(t, 1, p.Accepted()-before, "one that is new says the same")
}
