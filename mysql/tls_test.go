package mysqllock

import (
	"context"
	"errors"
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
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
)

// parameters adds parameters to a URL.
func parameters(address string, pairs ...string) string {
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		q.Set(pairs[i], pairs[i+1])
	}
	return address + "?" + q.Encode()
}

// used requires that a key can be held at this URL, in both forms.
func used(t *testing.T, address string) {
	t.Helper()
	for _, mode := range []string{"table", "row"} {
		l, err := lock.Open(t.Context(), address+"&mode="+mode, nil)
		require.NoError(t, err, mode)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		lease, err := l.TryAcquire(t.Context(), backendtest.UniqueKey(t))
		require.NoError(t, err, mode)
		require.NoError(t, lease.Renew(t.Context()), mode)
		require.NoError(t, lease.Release(t.Context()), mode)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	ours, theirs := servertest.NewAuthority(t, "ours"), servertest.NewAuthority(t, "theirs")
	cert, key := ours.Server("localhost")
	server := servertest.MariaDB(t, servertest.WithControl(), servertest.WithTLS(servertest.TLSFiles{CA: ours.File(), Cert: cert, Key: key}))
	_, port, err := net.SplitHostPort(server.Addr())
	require.NoError(t, err)
	there := server.URLAt(net.JoinHostPort("localhost", port))
	good := parameters(there, "tls", "true", "ca", ours.File())
	used(t, good)
	refused := func(url, why string) (err error) {
		t.Helper()
		backendtest.Eventually(t, "an answer to "+why, func() bool {
			_, err = lock.Open(t.Context(), url, nil)
			return !errors.Is(err, lock.ErrUnavailable) // as on a machine that is too busy for a handshake in time
		})
		require.ErrorIs(t, err, lock.ErrPermanent, why)
		return err
	}
	err = refused(parameters(server.URL(), "tls", "true", "ca", ours.File()), "the certificate of another host")
	require.ErrorContains(t, err, "127.0.0.1")

	u, err := backend.ParseURL(good)
	require.NoError(t, err)
	b, err := Opener(t.Context(), u, backend.OpenConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })

	admin := mysqltest.AdminPool(t, server)
	mysqltest.Exec(t, admin, "ALTER USER mortise REQUIRE SSL")
	used(t, good)
	_ = refused(server.URL(), "the connections are encrypted, and others are refused")
	mysqltest.Exec(t, admin, "ALTER USER mortise REQUIRE X509")
	clientCert, clientKey := ours.Client("ann")
	used(t, good+"&"+strings.TrimPrefix(parameters("", "cert", clientCert, "key", clientKey), "?"))
	_ = refused(good, "no certificate of the client")
	mysqltest.Exec(t, admin, "ALTER USER mortise REQUIRE NONE")

	for _, mode := range []string{"table", "row"} {
		err = refused(parameters(there, "tls", "true", "ca", theirs.File(), "mode", mode), "another authority")
		require.ErrorContains(t, err, "unknown authority")
		require.ErrorContains(t, err, "check ca")
		_ = refused(parameters(there, "tls", "true", "mode", mode), "the authorities of the system")
		plain := servertest.SharedMariaDB(t)
		_ = refused(parameters(plain.URL(), "tls", "true", "ca", ours.File(), "mode", mode), "a server without TLS")
	}

	// A statement is given up below TLS.
	hold, _ := backendtest.Granted(t, b, mysqltest.Request(backendtest.UniqueKey(t)))
	server.Freeze(t)
	begun := time.Now()
	_, err = b.Renew(backendtest.Short(t, 50*time.Millisecond), hold)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Less(t, time.Since(begun), answerLimit-time.Second, "it was cut, and did not wait for the timeout of the driver")
	server.Resume(t)
	require.NoError(t, b.Release(t.Context(), hold))
}

func TestSocket(t *testing.T) {
	t.Parallel()
	server := servertest.SharedMariaDB(t)
	var path string
	require.NoError(t, mysqltest.AdminPool(t, server).QueryRowContext(t.Context(), "SELECT @@socket").Scan(&path))
	if _, err := os.Stat(path); err != nil {
		t.Skip("the server is in a container: ", err)
	}
	u, err := url.Parse(server.URL())
	require.NoError(t, err)
	at := func(path string) string {
		return parameters((&url.URL{Scheme: "mysql", User: u.User, Path: u.Path}).String(), "socket", path)
	}
	used(t, at(path))
	_, err = lock.Open(t.Context(), at(filepath.Join(t.TempDir(), "nobody")), nil)
	require.ErrorIs(t, err, lock.ErrUnavailable)
}
