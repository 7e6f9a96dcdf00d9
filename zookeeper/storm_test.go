package zklock

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/linear"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
)

// TestStorm judges what callers are told while the network between them and the
// servers does what it can, and looks at what is left on the servers afterwards.
func TestStorm(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]int{"one server, two ways to it": 1, "three members": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := []*servertest.Server{servertest.ZooKeeper(t)}
			proxies := []*servertest.TCPProxy{servertest.Proxy(t, servers[0].Addr()), servertest.Proxy(t, servers[0].Addr())}
			if n > 1 {
				servers, proxies = servertest.ZooKeeperCluster(t, n), nil
				for _, s := range servers {
					proxies = append(proxies, servertest.Proxy(t, s.Addr()))
				}
			}
			var hosts []string
			for _, p := range proxies {
				hosts = append(hosts, p.Addr())
			}
			const ttl = 12 * time.Second // so that no session ends in the storm
			storm := servertest.NewStorm(t, 400*time.Millisecond, proxies...)
			conformance.Run(t, conformance.Config{
				OpenBackend: func(ctx context.Context) (b backend.Backend, err error) {
					err = storm.Calm(t, func() (err error) {
						b, err = backend.DefaultMux.Open(ctx, "zk://"+strings.Join(hosts, ","), backend.OpenConfig{TTL: ttl})
						return err
					})
					return b, err
				},
				Judge:  linear.Judge(t),
				Only:   []string{"LinearizableUnderFaults"},
				TTL:    ttl,
				Budget: 20 * time.Second,
			})
			storm.End()
			backendtest.Eventually(t, "no node is left", func() bool {
				for _, s := range servers {
					if strings.Contains(word(t, s, "dump"), nodeMark) {
						return false
					}
				}
				return true
			})
		})
	}
}
