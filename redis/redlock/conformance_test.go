package redlock

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/internal/suites"
	"github.com/mortiselock/lock/redis/internal/redistest"
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
// those of the tests: the nodes remember the longest. One that answers late may have been
// left out; then it is waited for.
func firstUse(t testing.TB, servers []*servertest.Server) {
	t.Helper()
	backendtest.Eventually(t, "all nodes grant", func() bool {
		var log bytes.Buffer
		b, err := NewBackend(t.Context(), clientsOf(t, servers), &Options{
			NewNodes: true, Lock: lock.Options{TTL: time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil))},
		})
		require.NoError(t, err)
		require.NoError(t, b.Close())
		return !strings.Contains(log.String(), "a node can't be reached") && !strings.Contains(log.String(), "grant nothing for up to another")
	})
}

// unhurried gives the nodes all the time for an answer that the TTL allows: in most tests
// a late one says nothing but that the machine is busy.
func unhurried(opts Options) *Options {
	if opts.NodeTimeout == 0 {
		opts.NodeTimeout = cmp.Or(opts.Lock.TTL, lock.DefaultTTL) / 3
	}
	return &opts
}

func urlOf(servers []*servertest.Server) string {
	hosts := make([]string, len(servers))
	for i, s := range servers {
		hosts[i] = s.Addr()
	}
	return "redlock://" + strings.Join(hosts, ",")
}

// childConformance makes the same Configs in the processes that the suite starts.
func childConformance(child string) conformance.Config {
	ttl, url, _ := strings.Cut(child, " ")
	d, err := time.ParseDuration(ttl)
	if err != nil {
		panic(err)
	}
	return conformanceOf("", url, d)
}

func conformanceOf(name, url string, ttl time.Duration) conformance.Config {
	return conformance.Config{
		Name: name,
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return backend.DefaultMux.Open(ctx, url, backend.OpenConfig{TTL: ttl})
		},
		Child:  ttl.String() + " " + url,
		TTL:    ttl,
		Budget: servertest.Budget(),
		// Many servers share few cores here.
		Parallel: 6,
	}
}

// nodes are some of which a number is up.
type nodes struct {
	name       string
	nodes, up  int
	parameters string
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conforms(t, nodes{"3 nodes", 3, 3, ""})
}

// TestAlsoOnOtherNodes runs the suite on nodes of which as many are dead as it bears, and on
// those that give no tokens.
func TestAlsoOnOtherNodes(t *testing.T) {
	suites.Also(t)
	t.Parallel()
	sets := []nodes{{"5 nodes, 2 down", 5, 3, ""}, {"3 nodes, without tokens", 3, 3, "&tokens=off"}}
	if suites.Long() {
		sets = append(sets, nodes{"5 nodes", 5, 5, ""}, nodes{"5 nodes, 1 down", 5, 4, ""})
	}
	conforms(t, sets...)
}

func conforms(t *testing.T, sets ...nodes) {
	t.Helper()
	for _, set := range sets {
		t.Run(set.name, func(t *testing.T) {
			t.Parallel()
			servers := nodeSet(t, set.nodes)
			// So that longer leases are granted than those of the default TTL.
			url := urlOf(servers) + "?restart_delay=1m" + set.parameters
			for _, s := range servers[set.up:] {
				s.Kill(t)
			}
			ttl := time.Second
			if set.up < set.nodes {
				// With nodes down, a live one that the machine holds up is missed at once.
				ttl = 2 * time.Second
				url += "&node_timeout=600ms"
			}
			cfg := conformanceOf("redlock, "+set.name, url, ttl)
			if set.up < set.nodes {
				cfg.Deviations = map[string]string{"RaisedFloorCounts": "the floor is raised on all nodes or not at all, so that every majority knows it"}
			}
			if set.up == set.nodes && set.parameters == "" {
				cfg.Proxy = &conformance.Proxy{Server: strings.TrimPrefix(urlOf(servers), "redlock://"), Open: func(ctx context.Context, addr string) (lock.Locker, error) {
					return lock.Open(ctx, "redlock://"+addr+"?restart_delay=1m", &lock.Options{TTL: ttl})
				}}
			}
			cfg.Untouched = func(context.Context) (conformance.Store, error) {
				prefix := "untouched" + backend.NewID().Hex()[:8]
				return conformance.Store{
					Open: func(ctx context.Context) (backend.Backend, error) {
						return backend.DefaultMux.Open(ctx, url+"&prefix="+prefix, backend.OpenConfig{TTL: ttl})
					},
					Contents: func(ctx context.Context) (string, error) { return redistest.Keys(ctx, t, servers[:set.up], prefix) },
				}, nil
			}
			conformance.Run(t, cfg)
		})
	}
}
