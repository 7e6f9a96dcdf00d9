package etcdlock

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/servertest"
)

// authority signs certificates for a test, and writes them as PEM files.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string // the authority's own certificate
	last int64
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.file, _ = a.sign(name, func(c *x509.Certificate) {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
	})
	return a
}

// sign makes a certificate and its key. The first one is the authority's own.
func (a *authority) sign(name string, with func(c *x509.Certificate)) (cert, key string) {
	a.t.Helper()
	a.last++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(a.last), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature,
	}
	with(template)
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, private
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, private.Public(), signer)
	require.NoError(a.t, err)
	if a.cert == nil {
		a.key = private
		a.cert, err = x509.ParseCertificate(der)
		require.NoError(a.t, err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(a.t, err)
	write := func(kind, suffix string, der []byte) string {
		path := filepath.Join(a.dir, name+suffix)
		require.NoError(a.t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	return write("CERTIFICATE", ".pem", der), write("PRIVATE KEY", "-key.pem", pkcs8)
}

// server is a certificate for a host, with which etcd also dials itself.
func (a *authority) server(name string, ips ...net.IP) (cert, key string) {
	return a.sign(name, func(c *x509.Certificate) {
		c.DNSNames, c.IPAddresses = []string{name}, ips
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	})
}

func (a *authority) client(name string) (cert, key string) {
	return a.sign(name, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} })
}

// TestTLS: servers that show a certificate and ask for one.
func TestTLS(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(servertest.TB, ...servertest.Option) *servertest.Server{
		"etcd": servertest.Etcd, "current": servertest.EtcdCurrent,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
			serve := func(cert, key string) *servertest.Server {
				return start(t, servertest.WithTLS(servertest.TLSFiles{CA: ours.file, Cert: cert, Key: key}))
			}
			server := serve(ours.server("localhost", net.IPv4(127, 0, 0, 1)))
			cert, key := ours.client("ann")
			at := func(s *servertest.Server, files ...string) string {
				q := url.Values{}
				for i := 0; i+1 < len(files); i += 2 {
					q.Set(files[i], files[i+1])
				}
				return "etcds://" + s.TLSAddr() + "/tls?" + q.Encode()
			}

			l, err := lock.Open(t.Context(), at(server, "ca", ours.file, "cert", cert, "key", key), lock.WithDefaultTTL(2*time.Second))
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, l.Close()) })
			lease, err := l.Acquire(t.Context(), "k")
			require.NoError(t, err)
			other, err := lock.Open(t.Context(), "etcd://"+server.Addr()+"/tls")
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, other.Close()) })
			_, err = other.TryAcquire(t.Context(), "k")
			require.ErrorIs(t, err, lock.ErrHeld, "they are members of one cluster")
			require.NoError(t, lease.Renew(t.Context()))
			require.NoError(t, lease.Release(t.Context()))

			elsewhere := serve(ours.server("elsewhere.example"))
			strangeCert, strangeKey := theirs.client("eve")
			for what, c := range map[string]struct{ url, text string }{
				"no authority":             {at(server, "cert", cert, "key", key), "certificate signed by unknown authority"},
				"another authority":        {at(server, "ca", theirs.file, "cert", cert, "key", key), "certificate signed by unknown authority"},
				"another, with a user":     {strings.Replace(at(server, "ca", theirs.file, "cert", cert, "key", key), "//", "//ann:hunter2@", 1), "certificate signed by unknown authority"},
				"no client certificate":    {at(server, "ca", ours.file), "certificate"},
				"one of a stranger":        {at(server, "ca", ours.file, "cert", strangeCert, "key", strangeKey), "certificate"},
				"a server of another name": {at(elsewhere, "ca", ours.file, "cert", cert, "key", key), "127.0.0.1"},
			} {
				_, err := lock.Open(short(t, 10*time.Second), c.url)
				require.ErrorIs(t, err, lock.ErrPermanent, what)
				assert.ErrorContains(t, err, c.text, what)
				assert.ErrorContains(t, err, "check ca, cert and key", what)
				assert.NotContains(t, err.Error(), "hunter2")
			}
		})
	}
}
