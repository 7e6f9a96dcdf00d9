package redislock

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/servertest"
)

// nodeSet are servers of a test's own.
func nodeSet(t testing.TB, n int) []*servertest.Server {
	t.Helper()
	servers := make([]*servertest.Server, n)
	for i := range servers {
		servers[i] = servertest.Redis(t, servertest.WithControl())
	}
	return servers
}

func redlockURL(servers []*servertest.Server) string {
	hosts := make([]string, len(servers))
	for i, s := range servers {
		hosts[i] = s.Addr()
	}
	return "redlock://" + strings.Join(hosts, ",")
}

func conformanceOfRedlock(name, url string) conformance.Config {
	return conformance.Config{
		Name: name,
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return backend.DefaultMux.Open(ctx, url, backend.OpenConfig{TTL: time.Second})
		},
		Child:  url,
		TTL:    time.Second,
		Budget: 10 * time.Second,
		// Many servers share few cores here.
		Parallel: 8,
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
		{"3 nodes, without tokens", 3, 3, "?tokens=off"},
	} {
		t.Run(set.name, func(t *testing.T) {
			t.Parallel()
			servers := nodeSet(t, set.nodes)
			url := redlockURL(servers) + set.parameters
			for _, s := range servers[set.up:] {
				s.Kill(t)
			}
			conformance.Run(t, conformanceOfRedlock("redlock, "+set.name, url))
			if set.up < set.nodes {
				// go-redis asks a dead server for a sign of life once a second, and
				// only then sees that its client was closed. goleak would see it too.
				time.Sleep(1100 * time.Millisecond)
			}
		})
	}
}
