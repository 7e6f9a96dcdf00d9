package zklock

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
)

// TestTLS: servers that show a certificate and ask for one.
func TestTLS(t *testing.T) {
	t.Parallel()
	ours, theirs := servertest.NewAuthority(t, "ours"), servertest.NewAuthority(t, "theirs")
	serve := func(cert, key string) *servertest.Server {
		return servertest.ZooKeeper(t, servertest.WithControl(), servertest.WithTLS(servertest.TLSFiles{CA: ours.File(), Cert: cert, Key: key}))
	}
	server := serve(ours.Server("localhost", net.IPv4(127, 0, 0, 1)))
	cert, key := ours.Client("ann")
	at := func(s *servertest.Server, files ...string) string {
		q := url.Values{}
		for i := 0; i+1 < len(files); i += 2 {
			q.Set(files[i], files[i+1])
		}
		return "zks://" + s.TLSAddr() + "?" + q.Encode()
	}
	// A third of the TTL is for the handshake, and the first one of a Java machine takes its time.
	patient := &lock.Options{TTL: longest}
	good := at(server, "ca", ours.File(), "cert", cert, "key", key)

	t.Run("what it refuses", func(t *testing.T) {
		t.Parallel()
		elsewhere := serve(ours.Server("elsewhere.example"))
		strangeCert, strangeKey := theirs.Client("eve")
		for what, c := range map[string]struct{ url, text string }{
			"no authority":             {at(server, "cert", cert, "key", key), "certificate signed by unknown authority"},
			"another authority":        {at(server, "ca", theirs.File(), "cert", cert, "key", key), "certificate signed by unknown authority"},
			"no client certificate":    {at(server, "ca", ours.File()), "certificate"},
			"one of a stranger":        {at(server, "ca", ours.File(), "cert", strangeCert, "key", strangeKey), "certificate"},
			"a server of another name": {at(elsewhere, "ca", ours.File(), "cert", cert, "key", key), "127.0.0.1"},
		} {
			_, err := openURL(t, c.url, patient)
			for range 5 { // a handshake whose time was up tells nothing of certificates
				if late := net.Error(nil); !errors.As(err, &late) || !late.Timeout() {
					break
				}
				_, err = openURL(t, c.url, patient)
			}
			require.ErrorIs(t, err, lock.ErrPermanent, what)
			assert.ErrorContains(t, err, c.text, what)
			assert.ErrorContains(t, err, "check ca, cert and key", what)
		}
		_, err := lock.Open(backendtest.Short(t, 2*time.Second), "zk://"+server.TLSAddr(), nil)
		require.ErrorIs(t, err, lock.ErrUnavailable, "without TLS")
		_, err = lock.Open(backendtest.Short(t, 2*time.Second), "zks://"+server.Addr()+"?ca="+url.QueryEscape(ours.File()), nil)
		require.ErrorIs(t, err, lock.ErrUnavailable, "a port without TLS")

		pair, err := tls.LoadX509KeyPair(cert, key)
		require.NoError(t, err)
		cfg, err := backend.TLSConfig(ours.File(), "", "")
		require.NoError(t, err)
		cfg.Certificates, cfg.ServerName = []tls.Certificate{pair}, "elsewhere.example"
		l, err := New(t.Context(), []string{elsewhere.TLSAddr()}, &Options{TLS: cfg, Lock: lock.Options{TTL: longest}})
		require.NoError(t, err, "the name that is expected can be given")
		require.NoError(t, l.Close())
	})
	t.Run("a frozen server", func(t *testing.T) {
		t.Parallel()
		const ttl = 20 * time.Second
		server := serve(ours.Server("frozen", net.IPv4(127, 0, 0, 1)))
		l, err := openURL(t, at(server, "ca", ours.File(), "cert", cert, "key", key), &lock.Options{TTL: ttl})
		require.NoError(t, err)
		lease, err := l.Acquire(t.Context(), "held")
		require.NoError(t, err)
		deadline, ok := lease.Deadline()
		require.True(t, ok)
		server.Freeze(t)
		_, err = l.TryAcquire(backendtest.Short(t, 100*time.Millisecond), "another")
		require.Error(t, err)
		require.NoError(t, lease.Context().Err(), "it waited until the hold was lost")
		select {
		case <-lease.Context().Done():
			require.ErrorIs(t, context.Cause(lease.Context()), lock.ErrLost)
		case <-time.After(time.Until(deadline) + ttl):
			t.Fatal("the loss was not told")
		}
		server.Resume(t)
		next, err := l.Acquire(backendtest.Short(t, 2*time.Minute), "held")
		require.NoError(t, err)
		require.NoError(t, next.Release(t.Context()))
	})
	l, err := openURL(t, good, patient)
	require.NoError(t, err)
	t.Run("conformance", func(t *testing.T) {
		t.Parallel()
		cfg := conformanceOfURL(good)
		cfg.Only = []string{"Exclusive", "ReleaseFrees", "TokenIncreases", "LostOnRemoval", "WaiterWakes", "CrashFrees"}
		open := cfg.OpenBackend
		cfg.OpenBackend = func(ctx context.Context) (b backend.Backend, err error) {
			for range 5 { // the handshake may take longer than a short session has
				if b, err = open(ctx); !errors.Is(err, lock.ErrUnavailable) || ctx.Err() != nil {
					break
				}
			}
			return b, err
		}
		conformance.Run(t, cfg)
	})
	plain := lockerOn(t, backendOn(t, nil, server))
	lease, err := l.Acquire(t.Context(), "k")
	require.NoError(t, err)
	_, err = plain.TryAcquire(t.Context(), "k")
	require.ErrorIs(t, err, lock.ErrHeld, "it is the same server")
	require.NoError(t, lease.Renew(t.Context()))
	require.NoError(t, lease.Release(t.Context()))
}
