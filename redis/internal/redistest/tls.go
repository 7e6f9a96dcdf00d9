package redistest

import (
	"net"
	"testing"

	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
)

// SpeakTLS makes a server serve at another port too, with a certificate for 127.0.0.1 and
// to those who show one of the same authority.
func SpeakTLS(t *testing.T, s *servertest.Server, ours *servertest.Authority) (port string) {
	t.Helper()
	c := Client(t, s)
	cert, key := ours.Server("server", net.IPv4(127, 0, 0, 1))
	for _, setting := range [][2]string{{"tls-cert-file", cert}, {"tls-key-file", key}, {"tls-ca-cert-file", ours.File()}} {
		if err := c.ConfigSet(t.Context(), setting[0], setting[1]).Err(); err != nil {
			servertest.MissingRedis(t, "this Redis has no TLS: %v", err)
		}
	}
	backendtest.Eventually(t, "a port that nobody else has taken", func() bool {
		port = servertest.FreePort(t)
		return c.ConfigSet(t.Context(), "tls-port", port).Err() == nil
	})
	return port
}
