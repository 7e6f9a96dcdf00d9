package redislock

import (
	"fmt"
	"net"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

// clusterOf starts members that share the slots in their order, without replicas. The
// others can do without each of them.
func clusterOf(t *testing.T, members int) (addrs []string, servers []*servertest.Server) {
	t.Helper()
	var clients []*goredis.Client
	for range members {
		s := servertest.Redis(t, servertest.WithControl(),
			servertest.WithArgs("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-require-full-coverage", "no"))
		servers, addrs, clients = append(servers, s), append(addrs, s.Addr()), append(clients, redistest.Client(t, s))
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
		backendtest.Eventually(t, "the cluster forms", func() bool {
			text := c.ClusterInfo(t.Context()).Val()
			// The state is ok before all slots are known, since full coverage is not required.
			return strings.Contains(text, "cluster_state:ok") && strings.Contains(text, fmt.Sprintf("cluster_slots_ok:%d\r\n", slots)) && strings.Contains(text, fmt.Sprintf("cluster_known_nodes:%d\r\n", members))
		})
	}
	return addrs, servers
}

// TestCluster is what needs a cluster and leaves it as it is.
func TestCluster(t *testing.T) {
	t.Parallel()
	addrs, servers := clusterOf(t, 3)
	t.Run("members", func(t *testing.T) { testClusterMembers(t, addrs) })
	t.Run("permissions", func(t *testing.T) { testClusterPermissions(t, addrs) })
	t.Run("without cluster mode", func(t *testing.T) { testClusterWithoutClusterMode(t, addrs) })
	t.Run("floor", func(t *testing.T) { testClusterFloor(t, addrs) })
	t.Run("fair", func(t *testing.T) { testClusterFair(t, addrs, servers) })
}

func testClusterMembers(t *testing.T, addrs []string) {
	b, err := backend.DefaultMux.Open(t.Context(), "redis://"+strings.Join(addrs, ",")+"?cluster=true", backend.OpenConfig{TTL: ttl})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	watcher, batch := b.(backend.Watcher), b.(backend.BatchRenewer)

	// Enough keys to reach all members, and one subscription for all.
	var holds []backend.Hold
	var watches []<-chan backend.Hint
	for range 40 {
		key := backendtest.UniqueKey(t)
		hold, g := backendtest.Granted(t, b, ownedRequest(key, "a", ttl))
		require.NotZero(t, g.Token)
		_, err := b.Try(t.Context(), redistest.Request(key))
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
		_, next := backendtest.Granted(t, b, redistest.Request(hold.Key))
		require.Greater(t, next.Token, hold.Token)
	}
}

// The rules that the documentation gives for a Cluster suffice.
func testClusterPermissions(t *testing.T, addrs []string) {
	for _, addr := range addrs {
		c := goredis.NewClient(&goredis.Options{Addr: addr})
		args := []any{"acl", "setuser", "locks", "on", ">pass"}
		args = append(args, documentedRules(t)...)
		require.NoError(t, c.Do(t.Context(), append(args, "+cluster|slots")...).Err())
		require.NoError(t, c.Close())
	}
	b, err := backend.DefaultMux.Open(t.Context(), "redis://locks:pass@"+strings.Join(addrs, ",")+"?cluster=true", backend.OpenConfig{TTL: ttl})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	for range 10 {
		key := backendtest.UniqueKey(t)
		w, err := b.(backend.Watcher).Watch(t.Context(), key)
		require.NoError(t, err)
		hold, _ := backendtest.Granted(t, b, redistest.Request(key))
		require.NoError(t, b.Release(t.Context(), hold))
		signalled(t, w)
	}
}

// A client that does not know of the cluster is told at once what is missing.
func testClusterWithoutClusterMode(t *testing.T, addrs []string) {
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
		if _, err := b.Try(t.Context(), redistest.Request(backendtest.UniqueKey(t))); err != nil {
			require.ErrorIs(t, err, backend.ErrPermanent)
			require.ErrorContains(t, err, "cluster=true")
			moved++
		}
	}
	require.Positive(t, moved)

	// One member that serves every slot is a server like any other.
	alone, _ := clusterOf(t, 1)
	whole, err := backend.DefaultMux.Open(t.Context(), "redis://"+alone[0], backend.OpenConfig{TTL: ttl})
	require.NoError(t, err)
	backendtest.Granted(t, whole, redistest.Request(backendtest.UniqueKey(t)))
	require.NoError(t, whole.Close())
}
