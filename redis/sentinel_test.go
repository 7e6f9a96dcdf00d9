package redislock

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// watched is a primary with one replica and three sentinels, two of which decide
// about a failover.
type watched struct {
	primary, replica *servertest.Server
	hosts            string // of the sentinels
}

func (w watched) url(parameters string) string {
	return "redis://" + w.hosts + "?master=main" + parameters
}

func sentinels(t *testing.T) watched {
	t.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		servertest.MissingRedis(t, "a sentinel is redis-server, which is not installed here: apt-get install redis-server")
	}
	w := watched{primary: servertest.Redis(t, servertest.WithControl())}
	host, port, err := net.SplitHostPort(w.primary.Addr())
	require.NoError(t, err)
	w.replica = servertest.Redis(t, servertest.WithArgs("--replicaof", host+" "+port, "--replica-read-only", "no"))
	primary := redistest.Client(t, w.primary)
	backendtest.Eventually(t, "the replica is in step", func() bool {
		return strings.Contains(primary.Info(t.Context(), "replication").Val(), "state=online")
	})
	var all []*goredis.SentinelClient
	var hosts []string
	for range 3 {
		at := servertest.FreePort(t)
		conf := filepath.Join(t.TempDir(), "sentinel.conf")
		require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil,
			"port %s\nbind 127.0.0.1\ndir %s\nsentinel monitor main %s %s 2\nsentinel down-after-milliseconds main 2000\nsentinel failover-timeout main 2000\n",
			at, filepath.Dir(conf), host, port), 0o600))
		ctx, cancel := context.WithCancel(context.Background())
		cmd := exec.CommandContext(ctx, program, conf, "--sentinel")
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { cancel(); _ = cmd.Wait() })
		c := goredis.NewSentinelClient(&goredis.Options{Addr: "127.0.0.1:" + at})
		t.Cleanup(func() { _ = c.Close() })
		all, hosts = append(all, c), append(hosts, "127.0.0.1:"+at)
	}
	for _, c := range all {
		backendtest.Eventually(t, "the sentinels know each other and both servers", func() bool {
			main, err := c.Master(t.Context(), "main").Result()
			if err != nil || main["num-other-sentinels"] != "2" || main["flags"] != "master" {
				return false
			}
			replicas, err := c.Replicas(t.Context(), "main").Result()
			return err == nil && len(replicas) == 1 && replicas[0]["flags"] == "slave" && replicas[0]["master-link-status"] == "ok"
		})
	}
	w.hosts = strings.Join(hosts, ",")
	return w
}

// forgotten makes the replica one that had not heard of the key when the primary
// died.
func (w watched) forgotten(t *testing.T, key string) {
	t.Helper()
	name := namesOf(defaultPrefix, key).record()
	c := redistest.Client(t, w.replica)
	backendtest.Eventually(t, "the replica has the record", func() bool { return c.Del(t.Context(), name).Val() == 1 })
}

// promoted waits until the replica has taken over.
func (w watched) promoted(t *testing.T) {
	t.Helper()
	c := redistest.Client(t, w.replica)
	backendtest.Eventually(t, "the replica takes over", func() bool {
		return wire.InfoFields(c.Info(t.Context(), "replication").Val())["role"] == "master"
	})
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	w := sentinels(t)
	b, err := backend.DefaultMux.Open(t.Context(), w.url(""), backend.OpenConfig{TTL: ttl})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	key := backendtest.UniqueKey(t)
	hold, g := backendtest.Granted(t, b, redistest.Request(key))
	hints, err := b.(backend.Watcher).Watch(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, b.Release(t.Context(), hold))
	signalled(t, hints)
	drain(hints)

	w.primary.Kill(t)
	signalled(t, hints)
	var after backend.Grant
	backendtest.Eventually(t, "the replica takes over", func() bool {
		limited, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		after, err = b.Try(limited, redistest.Request(key))
		return err == nil
	})
	require.Greater(t, after.Token, g.Token)
	require.Equal(t, "master", wire.InfoFields(redistest.Client(t, w.replica).Info(t.Context(), "replication").Val())["role"])

	_, err = backend.DefaultMux.Open(t.Context(), "redis://"+w.hosts+"?master=nobody", backend.OpenConfig{TTL: ttl})
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, "that they watch a master of the name")
}

// TestSentinelFailover is what users see of a failover: a lease that the new primary
// has goes on, one that it has not is reported lost by the next renewal, and those who
// wait are served, in their order where one is promised, with larger tokens.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	w := sentinels(t)
	c, replica := redistest.Client(t, w.primary), redistest.Client(t, w.replica)
	usual, fair := failingOver(t, w, ""), failingOver(t, w, "&fair=true")
	places := func(c *goredis.Client, key string, n int64) {
		backendtest.Eventually(t, "the place is taken", func() bool {
			return c.ZCard(t.Context(), namesOf(defaultPrefix, key).queue()).Val() == n
		})
	}
	for n := range int64(2) {
		usual.wait(usual.kept.Key())
		fair.wait(fair.kept.Key())
		places(c, fair.kept.Key(), n+1)
	}
	for _, f := range []*failover{usual, fair} {
		f.wait(f.lost.Key())
	}
	places(c, fair.lost.Key(), 1)
	for _, f := range []*failover{usual, fair} {
		backendtest.Eventually(t, "the replica has what is kept", func() bool {
			return replica.Exists(t.Context(), namesOf(defaultPrefix, f.kept.Key()).record()).Val() == 1
		})
		w.forgotten(t, f.lost.Key())
	}
	w.primary.Kill(t)
	w.promoted(t)

	for _, f := range []*failover{usual, fair} {
		taken := <-f.waiting[2]
		require.NotNil(t, taken)
		require.Greater(t, taken.Token(), f.lost.Token())
		<-f.lost.Context().Done()
		require.ErrorIs(t, context.Cause(f.lost.Context()), lock.ErrTakenOver, "by a renewal, and not at the deadline")
		require.ErrorIs(t, f.lost.Release(t.Context()), lock.ErrNotHeld)
		require.NoError(t, taken.Release(t.Context()))
	}
	places(replica, fair.kept.Key(), 2)
	for _, f := range []*failover{usual, fair} {
		first, second := f.waiting[0], f.waiting[1]
		require.NoError(t, f.kept.Renew(t.Context()))
		require.NoError(t, f.kept.Context().Err())
		select {
		case <-first:
			t.Fatal("two holders")
		case <-second:
			t.Fatal("two holders")
		default:
		}
		require.NoError(t, f.kept.Release(t.Context()))
		var one, two lock.Lease
		select {
		case one = <-first:
			require.NoError(t, one.Release(t.Context()))
			two = <-second
		case one = <-second:
			require.Same(t, usual, f, "the order of arrival outlasts the failover")
			require.NoError(t, one.Release(t.Context()))
			two = <-first
		}
		require.Greater(t, one.Token(), f.kept.Token())
		require.Greater(t, two.Token(), one.Token())
		require.NoError(t, two.Release(t.Context()))
	}
}

// failover is two leases, the first of which the new primary has, and those who wait.
type failover struct {
	kept, lost lock.Lease
	wait       func(key string)
	waiting    []chan lock.Lease
}

func failingOver(t *testing.T, w watched, parameters string) *failover {
	t.Helper()
	const ttl = 30 * time.Second // failovers are over long before it
	f := &failover{}
	open := func() lock.Locker {
		l, err := lock.Open(t.Context(), w.url(parameters), &lock.Options{TTL: ttl})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		return l
	}
	holder := open()
	for _, lease := range []*lock.Lease{&f.kept, &f.lost} {
		var err error
		*lease, err = holder.Acquire(t.Context(), backendtest.UniqueKey(t))
		require.NoError(t, err)
	}
	f.wait = func(key string) {
		l, got := open(), make(chan lock.Lease, 1)
		f.waiting = append(f.waiting, got)
		go func() {
			defer close(got)
			if lease, err := l.Acquire(t.Context(), key); assert.NoError(t, err) {
				got <- lease
			}
		}()
	}
	return f
}
