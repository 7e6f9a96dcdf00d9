package etcdlock

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/linear"
	"github.com/mortiselock/lock/internal/servertest"
)

// TestStorm judges what callers are told while the network between them and the
// endpoints does what it can, and looks at what is left on the servers afterwards.
func TestStorm(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) []*servertest.Server{
		"packaged, two ways to one server": func(t *testing.T) []*servertest.Server { s := servertest.Etcd(t); return []*servertest.Server{s, s} },
		"current, three members":           func(t *testing.T) []*servertest.Server { return servertest.EtcdCurrentCluster(t, 3) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var proxies []*servertest.TCPProxy
			var hosts []string
			servers := start(t)
			for _, s := range servers {
				p := servertest.Proxy(t, s.Addr())
				proxies, hosts = append(proxies, p), append(hosts, p.Addr())
			}
			url := "etcd://" + strings.Join(hosts, ",") + "/storm"
			storm := servertest.NewStorm(t, 400*time.Millisecond, proxies...)
			conformance.Run(t, conformance.Config{
				OpenBackend: func(ctx context.Context) (b backend.Backend, err error) {
					err = storm.Calm(t, func() (err error) {
						b, err = backend.DefaultMux.Open(ctx, url, backend.OpenConfig{})
						return err
					})
					return b, err
				},
				Judge:  linear.Judge(t),
				Only:   []string{"LinearizableUnderFaults"},
				TTL:    2 * time.Second,
				Budget: 20 * time.Second,
			})
			storm.End()
			c := clientOf(t, servers...)
			// What a client could not revoke when it was closed in the storm ends with its
			// TTL, of which the suite's longest is half a minute.
			require.Eventually(t, func() bool {
				resp, err := c.Get(t.Context(), "storm/keys/", clientv3.WithPrefix(), clientv3.WithCountOnly())
				return err == nil && resp.Count == 0
			}, 2*time.Minute, 50*time.Millisecond, "no key of a lock is left")
		})
	}
}
