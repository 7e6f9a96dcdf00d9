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
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

// cluster starts members that share the slots, without replicas.
func cluster(t *testing.T, members int) []string {
	t.Helper()
	var addrs []string
	var clients []*goredis.Client
	for range members {
		s := servertest.Redis(t, servertest.WithArgs("--cluster-enabled", "yes", "--cluster-node-timeout", "2000"))
		addrs, clients = append(addrs, s.Addr()), append(clients, clientOf(t, s))
	}
	const slots = 16384
	for i, c := range clients {
		require.NoError(t, c.ClusterAddSlotsRange(t.Context(), i*slots/members, (i+1)*slots/members-1).Err())
		require.NoError(t, c.Do(t.Context(), "cluster", "set-config-epoch", i+1).Err())
	}
	for _, addr := range addrs[1:] {
		host, port, err := net.SplitHostPort(addr)
		require.NoError(t, err)
		require.NoError(t, clients[0].ClusterMeet(t.Context(), host, port).Err())
	}
	for _, c := range clients {
		eventually(t, "the cluster forms", func() bool {
			text := c.ClusterInfo(t.Context()).Val()
			return strings.Contains(text, "cluster_state:ok") && strings.Contains(text, fmt.Sprintf("cluster_known_nodes:%d", members))
		})
	}
	return addrs
}

func TestCluster(t *testing.T) {
	t.Parallel()
	addrs := cluster(t, 2)
	b, err := backend.DefaultMux.Open(t.Context(), "redis://"+strings.Join(addrs, ",")+"?cluster=true", backend.OpenConfig{TTL: ttl})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	watcher, batch := b.(backend.Watcher), b.(backend.BatchRenewer)

	// Enough keys to reach both members, and one subscription for all.
	var holds []backend.Hold
	var watches []<-chan backend.Hint
	for range 40 {
		key := uniqueKey(t)
		hold, g := granted(t, b, ownedRequest(key, "a", ttl))
		require.NotZero(t, g.Token)
		_, err := b.Try(t.Context(), request(key))
		require.ErrorIs(t, err, backend.ErrHeld)
		w, err := watcher.Watch(t.Context(), key)
		require.NoError(t, err)
		holds, watches = append(holds, hold), append(watches, w)
	}
	for _, r := range batch.RenewBatch(t.Context(), holds) {
		require.NoError(t, r.Err)
	}
	members := map[string]bool{}
	for _, addr := range addrs {
		c := goredis.NewClient(&goredis.Options{Addr: addr})
		n, err := c.DBSize(t.Context()).Result()
		require.NoError(t, err)
		members[addr] = n > 0
		require.NoError(t, c.ScriptFlush(t.Context()).Err())
		require.NoError(t, c.Close())
	}
	for addr, used := range members {
		require.True(t, used, "member %s has keys", addr)
	}
	for _, r := range batch.RenewBatch(t.Context(), holds) {
		require.NoError(t, r.Err)
	}
	for i, hold := range holds {
		drain(watches[i])
		require.NoError(t, b.Release(t.Context(), hold))
		signalled(t, watches[i])
		_, next := granted(t, b, request(hold.Key))
		require.Greater(t, next.Token, hold.Token)
	}
}

// The rules that the documentation gives for a Cluster suffice.
func TestClusterPermissions(t *testing.T) {
	t.Parallel()
	addrs := cluster(t, 2)
	for _, addr := range addrs {
		c := goredis.NewClient(&goredis.Options{Addr: addr})
		args := []any{"acl", "setuser", "locks", "on", ">pass"}
		args = append(args, documentedRules(t)...)
		require.NoError(t, c.Do(t.Context(), append(args, "+cluster|slots", "+command")...).Err())
		require.NoError(t, c.Close())
	}
	b, err := backend.DefaultMux.Open(t.Context(), "redis://locks:pass@"+strings.Join(addrs, ",")+"?cluster=true", backend.OpenConfig{TTL: ttl})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	for range 10 {
		key := uniqueKey(t)
		w, err := b.(backend.Watcher).Watch(t.Context(), key)
		require.NoError(t, err)
		hold, _ := granted(t, b, request(key))
		require.NoError(t, b.Release(t.Context(), hold))
		signalled(t, w)
	}
}

// A client that does not know of the cluster is told at once what is missing.
func TestClusterWithoutClusterMode(t *testing.T) {
	t.Parallel()
	addrs := cluster(t, 2)
	_, err := backend.DefaultMux.Open(t.Context(), "redis://"+addrs[0], backend.OpenConfig{TTL: ttl})
	require.ErrorIs(t, err, backend.ErrPermanent)
	require.ErrorContains(t, err, "cluster=true")

	c := goredis.NewClient(&goredis.Options{Addr: addrs[0]})
	t.Cleanup(func() { _ = c.Close() })
	b, err := newBackend(c, "")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	moved := 0
	for range 40 {
		if _, err := b.Try(t.Context(), request(uniqueKey(t))); err != nil {
			require.ErrorIs(t, err, backend.ErrPermanent)
			require.ErrorContains(t, err, "cluster=true")
			moved++
		}
	}
	require.Positive(t, moved)

	// One member that serves every slot is a server like any other.
	alone := cluster(t, 1)
	whole, err := backend.DefaultMux.Open(t.Context(), "redis://"+alone[0], backend.OpenConfig{TTL: ttl})
	require.NoError(t, err)
	granted(t, whole, request(uniqueKey(t)))
	require.NoError(t, whole.Close())
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		servertest.MissingRedis(t, "a sentinel is redis-server, which is not installed here: apt-get install redis-server")
	}
	primary := servertest.Redis(t, servertest.WithControl())
	primaryHost, primaryPort, err := net.SplitHostPort(primary.Addr())
	require.NoError(t, err)
	replica := servertest.Redis(t, servertest.WithArgs("--replicaof", primaryHost+" "+primaryPort))
	eventually(t, "the replica is in step", func() bool {
		return strings.Contains(clientOf(t, primary).Info(t.Context(), "replication").Val(), "state=online")
	})

	port := freePort(t)
	conf := filepath.Join(t.TempDir(), "sentinel.conf")
	require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil,
		"port %s\nbind 127.0.0.1\ndir %s\nsentinel monitor main %s %s 1\nsentinel down-after-milliseconds main 500\nsentinel failover-timeout main 2000\n",
		port, filepath.Dir(conf), primaryHost, primaryPort), 0o600))
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, conf, "--sentinel")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	sentinel := goredis.NewSentinelClient(&goredis.Options{Addr: "127.0.0.1:" + port})
	t.Cleanup(func() { _ = sentinel.Close() })
	eventually(t, "the sentinel knows both", func() bool {
		replicas, err := sentinel.Replicas(t.Context(), "main").Result()
		return err == nil && len(replicas) == 1 && strings.Contains(replicas[0]["flags"], "slave") && replicas[0]["master-link-status"] == "ok"
	})

	b, err := backend.DefaultMux.Open(t.Context(), "redis://127.0.0.1:"+port+"?master=main", backend.OpenConfig{TTL: ttl})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	key := uniqueKey(t)
	hold, g := granted(t, b, request(key))
	w, err := b.(backend.Watcher).Watch(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, b.Release(t.Context(), hold))
	signalled(t, w)
	drain(w)

	primary.Kill(t)
	signalled(t, w)
	var after backend.Grant
	require.Eventually(t, func() bool {
		limited, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		after, err = b.Try(limited, request(key))
		return err == nil
	}, 30*time.Second, 50*time.Millisecond, "the replica takes over")
	require.Greater(t, after.Token, g.Token)
	require.Equal(t, "master", infoFields(clientOf(t, replica).Info(t.Context(), "replication").Val())["role"])

	_, err = backend.DefaultMux.Open(t.Context(), "redis://127.0.0.1:"+port+"?master=nobody", backend.OpenConfig{TTL: ttl})
	require.ErrorIs(t, err, backend.ErrUnavailable)
}
