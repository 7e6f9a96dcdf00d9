package etcdlock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/linear"
	"github.com/mortiselock/lock/internal/servertest"
)

// TestStorm judges what callers are told while the network between them and two
// endpoints does what it can, and looks at what is left on the server afterwards.
func TestStorm(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(servertest.TB, ...servertest.Option) *servertest.Server{
		"etcd": servertest.Etcd, "current": servertest.EtcdCurrent,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t)
			one, two := servertest.Proxy(t, server.Addr()), servertest.Proxy(t, server.Addr())
			url := "etcd://" + one.Addr() + "," + two.Addr() + "/storm"
			storm := servertest.NewStorm(t, 400*time.Millisecond, one, two)
			conformance.Run(t, conformance.Config{
				OpenBackend: func(ctx context.Context) (b backend.Backend, err error) {
					storm.Calm(func() { b, err = backend.DefaultMux.Open(ctx, url, backend.OpenConfig{}) })
					return b, err
				},
				Judge:  linear.Judge(t),
				Only:   []string{"LinearizableUnderFaults"},
				TTL:    2 * time.Second,
				Budget: 20 * time.Second,
			})
			storm.End()
			c := clientOf(t, server)
			eventually(t, "no key of a lock is left", func() bool {
				resp, err := c.Get(t.Context(), "storm/keys/", clientv3.WithPrefix(), clientv3.WithCountOnly())
				require.NoError(t, err)
				return resp.Count == 0
			})
		})
	}
}
