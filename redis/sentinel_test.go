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
	"github.com/mortiselock/lock/internal/servertest"
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
	eventually(t, "the replica is in step", func() bool {
		return strings.Contains(clientOf(t, w.primary).Info(t.Context(), "replication").Val(), "state=online")
	})
	var all []*goredis.SentinelClient
	var hosts []string
	for range 3 {
		at := freePort(t)
		conf := filepath.Join(t.TempDir(), "sentinel.conf")
		require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil,
			"port %s\nbind 127.0.0.1\ndir %s\nsentinel monitor main %s %s 2\nsentinel down-after-milliseconds main 500\nsentinel failover-timeout main 2000\n",
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
		require.Eventually(t, func() bool {
			main, err := c.Master(t.Context(), "main").Result()
			if err != nil || main["num-other-sentinels"] != "2" || main["flags"] != "master" {
				return false
			}
			replicas, err := c.Replicas(t.Context(), "main").Result()
			return err == nil && len(replicas) == 1 && replicas[0]["flags"] == "slave" && replicas[0]["master-link-status"] == "ok"
		}, 20*time.Second, 20*time.Millisecond, "the sentinels know each other and both servers")
	}
	w.hosts = strings.Join(hosts, ",")
	return w
}

// forgotten makes the replica one that had not heard of the key when the primary
// died.
func (w watched) forgotten(t *testing.T, key string) {
	t.Helper()
	name := namesOf(defaultPrefix, key).record()
	c := clientOf(t, w.replica)
	eventually(t, "the replica has the record", func() bool { return c.Del(t.Context(), name).Val() == 1 })
}

// promoted waits until the replica has taken over.
func (w watched) promoted(t *testing.T) {
	t.Helper()
	c := clientOf(t, w.replica)
	require.Eventually(t, func() bool {
		return infoFields(c.Info(t.Context(), "replication").Val())["role"] == "master"
	}, 30*time.Second, 10*time.Millisecond, "the replica takes over")
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	w := sentinels(t)
	b, err := backend.DefaultMux.Open(t.Context(), w.url(""), backend.OpenConfig{TTL: ttl})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	key := uniqueKey(t)
	hold, g := granted(t, b, request(key))
	hints, err := b.(backend.Watcher).Watch(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, b.Release(t.Context(), hold))
	signalled(t, hints)
	drain(hints)

	w.primary.Kill(t)
	signalled(t, hints)
	var after backend.Grant
	require.Eventually(t, func() bool {
		limited, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		after, err = b.Try(limited, request(key))
		return err == nil
	}, 30*time.Second, 50*time.Millisecond, "the replica takes over")
	require.Greater(t, after.Token, g.Token)
	require.Equal(t, "master", infoFields(clientOf(t, w.replica).Info(t.Context(), "replication").Val())["role"])

	_, err = backend.DefaultMux.Open(t.Context(), "redis://"+w.hosts+"?master=nobody", backend.OpenConfig{TTL: ttl})
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, "that they watch a master of the name")
}

// TestSentinelFailover is what users see of a failover: a lease that the new primary
// has goes on, one that it has not is reported lost within a renewal period, and
// those who wait are served, in their order where one is promised, with larger
// tokens.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	for _, fair := range []bool{false, true} {
		t.Run(fmt.Sprintf("fair=%t", fair), func(t *testing.T) {
			t.Parallel()
			w := sentinels(t)
			const ttl = 30 * time.Second // failovers are over long before it
			open := func() lock.Locker {
				url := w.url("")
				if fair {
					url = w.url("&fair=true")
				}
				l, err := lock.Open(t.Context(), url, lock.WithDefaultTTL(ttl))
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, l.Close()) })
				return l
			}
			holder := open()
			keptKey, lostKey := uniqueKey(t), uniqueKey(t)
			kept, err := holder.Acquire(t.Context(), keptKey)
			require.NoError(t, err)
			lost, err := holder.Acquire(t.Context(), lostKey)
			require.NoError(t, err)
			waiting := func(l lock.Locker, key string) <-chan lock.Lease {
				got := make(chan lock.Lease, 1)
				go func() {
					defer close(got)
					if lease, err := l.Acquire(t.Context(), key); assert.NoError(t, err) {
						got <- lease
					}
				}()
				return got
			}
			c := clientOf(t, w.primary)
			places := func(key string, n int64) {
				if fair {
					eventually(t, "the place is taken", func() bool {
						return c.ZCard(t.Context(), namesOf(defaultPrefix, key).queue()).Val() == n
					})
				}
			}
			first := waiting(open(), keptKey)
			places(keptKey, 1)
			second := waiting(open(), keptKey)
			places(keptKey, 2)
			next := waiting(open(), lostKey)
			places(lostKey, 1)

			replica := clientOf(t, w.replica)
			eventually(t, "the replica has what is kept", func() bool {
				return replica.Exists(t.Context(), namesOf(defaultPrefix, keptKey).record()).Val() == 1
			})
			w.forgotten(t, lostKey)
			w.primary.Kill(t)
			w.promoted(t)
			promoted := time.Now()

			taken := <-next
			require.NotNil(t, taken)
			require.Greater(t, taken.Token(), lost.Token())
			<-lost.Context().Done()
			require.ErrorIs(t, context.Cause(lost.Context()), lock.ErrTakenOver)
			require.Less(t, time.Since(promoted), ttl/3+5*time.Second, "a renewal period, and a busy machine")
			require.ErrorIs(t, lost.Release(t.Context()), lock.ErrNotHeld)

			if fair {
				c = replica
				places(keptKey, 2)
			}
			require.NoError(t, kept.Renew(t.Context()))
			require.NoError(t, kept.Context().Err())
			select {
			case <-first:
				t.Fatal("two holders")
			case <-second:
				t.Fatal("two holders")
			default:
			}
			require.NoError(t, kept.Release(t.Context()))
			var one, two lock.Lease
			select {
			case one = <-first:
				require.NoError(t, one.Release(t.Context()))
				two = <-second
			case one = <-second:
				require.False(t, fair, "the order of arrival outlasts the failover")
				require.NoError(t, one.Release(t.Context()))
				two = <-first
			}
			require.Greater(t, one.Token(), kept.Token())
			require.Greater(t, two.Token(), one.Token())
			require.NoError(t, two.Release(t.Context()))
			require.NoError(t, taken.Release(t.Context()))
		})
	}
}
