package redislock

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/servertest"
)

// nodeSet are servers of a test's own, which were said to be new when they were first
// used, so that they grant at once.
func nodeSet(t testing.TB, n int) []*servertest.Server {
	t.Helper()
	servers := freshSet(t, n)
	firstUse(t, servers)
	return servers
}

// freshSet are servers that nobody has used.
func freshSet(t testing.TB, n int) []*servertest.Server {
	t.Helper()
	servers := make([]*servertest.Server, n)
	for i := range servers {
		servers[i] = servertest.Redis(t, servertest.WithControl())
	}
	return servers
}

// firstUse says once that the nodes are new, with a restart delay that is shorter than
// those of the tests: the nodes remember the longest.
func firstUse(t testing.TB, servers []*servertest.Server) {
	t.Helper()
	b, err := NewRedlockBackend(t.Context(), clientsOf(t, servers), &RedlockOptions{NewNodes: true, Lock: lock.Options{TTL: time.Second}})
	require.NoError(t, err)
	require.NoError(t, b.Close())
}

func redlockURL(servers []*servertest.Server) string {
	hosts := make([]string, len(servers))
	for i, s := range servers {
		hosts[i] = s.Addr()
	}
	return "redlock://" + strings.Join(hosts, ",")
}

// childOfRedlock begins what makes the Config again in another process; the TTL and
// the URL follow.
const childOfRedlock = "redlock "

func conformanceOfRedlock(name, url string, ttl time.Duration) conformance.Config {
	return conformance.Config{
		Name: name,
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return backend.DefaultMux.Open(ctx, url, backend.OpenConfig{TTL: ttl})
		},
		Child:  childOfRedlock + ttl.String() + " " + url,
		TTL:    ttl,
		Budget: 5 * time.Second,
		// Many servers share few cores here.
		Parallel: 6,
	}
}

// TestRedlockConformance runs the suite on three nodes, and on five of which some
// are dead.
func TestRedlockConformance(t *testing.T) {
	t.Parallel()
	for _, set := range []struct {
		name       string
		nodes, up  int
		parameters string
	}{
		{"3 nodes", 3, 3, ""},
		{"5 nodes", 5, 5, ""},
		{"5 nodes, 1 down", 5, 4, ""},
		{"5 nodes, 2 down", 5, 3, ""},
		{"3 nodes, without tokens", 3, 3, "&tokens=off"},
	} {
		t.Run(set.name, func(t *testing.T) {
			t.Parallel()
			servers := nodeSet(t, set.nodes)
			// So that longer leases are granted than those of the default TTL.
			url := redlockURL(servers) + "?restart_delay=1m" + set.parameters
			for _, s := range servers[set.up:] {
				s.Kill(t)
			}
			ttl := time.Second
			if set.up < set.nodes {
				// With nodes down, a live one that the machine holds up is missed at once.
				ttl = 2 * time.Second
				url += "&node_timeout=600ms"
			}
			conformance.Run(t, conformanceOfRedlock("redlock, "+set.name, url, ttl))
			if set.up < set.nodes {
				// go-redis asks a dead server for a sign of life once a second, and
				// only then sees that its client was closed. goleak would see it too.
				time.Sleep(1100 * time.Millisecond)
			}
		})
	}
}
