package etcdlock

import (
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
)

// TestTLS: servers that show a certificate and ask for one.
func TestTLS(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(servertest.TB, ...servertest.Option) *servertest.Server{
		"etcd": servertest.Etcd, "current": servertest.EtcdCurrent,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours, theirs := servertest.NewAuthority(t, "ours"), servertest.NewAuthority(t, "theirs")
			serve := func(cert, key string) *servertest.Server {
				return start(t, servertest.WithTLS(servertest.TLSFiles{CA: ours.File(), Cert: cert, Key: key}))
			}
			server := serve(ours.Server("localhost", net.IPv4(127, 0, 0, 1)))
			cert, key := ours.Client("ann")
			at := func(s *servertest.Server, files ...string) string {
				q := url.Values{}
				for i := 0; i+1 < len(files); i += 2 {
					q.Set(files[i], files[i+1])
				}
				return "etcds://" + s.TLSAddr() + "/tls?" + q.Encode()
			}

			l, err := lock.Open(t.Context(), at(server, "ca", ours.File(), "cert", cert, "key", key), &lock.Options{TTL: ttl})
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, l.Close()) })
			lease, err := l.Acquire(t.Context(), "k")
			require.NoError(t, err)
			other, err := lock.Open(t.Context(), "etcd://"+server.Addr()+"/tls", nil)
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, other.Close()) })
			_, err = other.TryAcquire(t.Context(), "k")
			require.ErrorIs(t, err, lock.ErrHeld, "they are members of one cluster")
			require.NoError(t, lease.Renew(t.Context()))
			require.NoError(t, lease.Release(t.Context()))

			elsewhere := serve(ours.Server("elsewhere.example"))
			strangeCert, strangeKey := theirs.Client("eve")
			for what, c := range map[string]struct{ url, text string }{
				"no authority":             {at(server, "cert", cert, "key", key), "certificate signed by unknown authority"},
				"another authority":        {at(server, "ca", theirs.File(), "cert", cert, "key", key), "certificate signed by unknown authority"},
				"another, with a user":     {strings.Replace(at(server, "ca", theirs.File(), "cert", cert, "key", key), "//", "//ann:hunter2@", 1), "certificate signed by unknown authority"},
				"no client certificate":    {at(server, "ca", ours.File()), "certificate"},
				"one of a stranger":        {at(server, "ca", ours.File(), "cert", strangeCert, "key", strangeKey), "certificate"},
				"a server of another name": {at(elsewhere, "ca", ours.File(), "cert", cert, "key", key), "127.0.0.1"},
			} {
				var err error
				// A handshake may take too long, or the connection may end before the refusal was read.
				backendtest.Eventually(t, "the server refuses "+what, func() bool {
					_, err = lock.Open(backendtest.Short(t, time.Minute), c.url, nil)
					require.Error(t, err, what)
					return errors.Is(err, lock.ErrPermanent)
				})
				assert.ErrorContains(t, err, c.text, what)
				assert.ErrorContains(t, err, "check ca, cert and key", what)
				assert.NotContains(t, err.Error(), "hunter2")
			}
		})
	}
}
