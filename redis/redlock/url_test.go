package redlock

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

func optionsOf(t *testing.T, raw string, ttl time.Duration) ([]*goredis.Client, Options, error) {
	t.Helper()
	u, err := backend.ParseURL(raw)
	require.NoError(t, err)
	clients, opts, err := clientsAndOptions(u, backend.OpenConfig{TTL: ttl})
	t.Cleanup(func() { closeAll(clients) })
	return clients, opts, err
}

func TestURLs(t *testing.T) {
	t.Parallel()
	for raw, check := range map[string]func(all []*goredis.Client, first *goredis.Options, o Options){
		"redlock://a,b:7000,[::1]:7001": func(all []*goredis.Client, first *goredis.Options, o Options) {
			require.Len(t, all, 3)
			require.Equal(t, "a:6379", first.Addr)
			require.Equal(t, "b:7000", all[1].Options().Addr)
			require.Equal(t, "[::1]:7001", all[2].Options().Addr)
			require.Nil(t, first.TLSConfig)
			require.Equal(t, "redlock:", o.Prefix)
			require.Equal(t, 15*time.Second, o.RestartDelay)
			require.Equal(t, 500*time.Millisecond, o.NodeTimeout)
			require.Equal(t, time.Second, first.DialTimeout)
			require.False(t, o.WithoutTokens)
		},
		"redlock://ann:pass@a,b,c/2?tokens=off&prefix=app%3A&node_timeout=30ms&restart_delay=1m&pool_size=3": func(all []*goredis.Client, first *goredis.Options, o Options) {
			for _, c := range all {
				require.Equal(t, "ann", c.Options().Username)
				require.Equal(t, "pass", c.Options().Password)
				require.Equal(t, 2, c.Options().DB)
			}
			require.Equal(t, 3, first.PoolSize)
			require.Equal(t, 30*time.Millisecond, first.ReadTimeout)
			require.Equal(t, "app:", o.Prefix)
			require.Equal(t, time.Minute, o.RestartDelay)
			require.True(t, o.WithoutTokens)
		},
		"redlock://a?node_timeout=2s": func(_ []*goredis.Client, first *goredis.Options, _ Options) {
			require.Equal(t, 2*time.Second, first.ReadTimeout)
			require.Equal(t, 2*time.Second, first.DialTimeout, "who waits longer for distant nodes has time for their handshakes")
		},
		"redlock://a?tls=true": func(all []*goredis.Client, first *goredis.Options, _ Options) {
			require.Len(t, all, 1)
			require.NotNil(t, first.TLSConfig)
			require.False(t, first.TLSConfig.InsecureSkipVerify)
		},
	} {
		clients, opts, err := optionsOf(t, raw, 0)
		require.NoError(t, err, raw)
		check(clients, clients[0].Options(), opts)
	}
}

func TestBadURLs(t *testing.T) {
	t.Parallel()
	for raw, text := range map[string]string{
		"redlock://a,b,c,d,e,f,g,h":          "1 to 7",
		"redlock://a?master=m":               "master",
		"redlock://a?tokens=perhaps":         "tokens",
		"redlock://a?node_timeout=0s":        "node_timeout",
		"redlock://a?node_timeout=5":         "node_timeout",
		"redlock://a?restart_delay=-1s":      "restart_delay",
		"redlock://a?new_nodes=perhaps":      "new_nodes",
		"redlock://a?ca=/x":                  "tls=true",
		"redlock://a?tls=true&ca=/not/there": "ca",
		"redlock://a?pool_size=0":            "pool_size",
		"redlock://a?prefix=":                "prefix",
		"redlock://ann@a,b":                  "password",
		"redlock://a/x":                      "database",
	} {
		_, _, err := optionsOf(t, raw, 0)
		require.ErrorIs(t, err, backend.ErrInvalid, raw)
		require.ErrorContains(t, err, text, raw)
	}
	_, err := backend.DefaultMux.Open(t.Context(), "redlock://127.0.0.1:1,127.0.0.1:2?node_timeout=6s", backend.OpenConfig{})
	require.ErrorIs(t, err, backend.ErrInvalid)
	require.ErrorContains(t, err, "third of the TTL")
	_, err = backend.DefaultMux.Open(t.Context(), "redlock://127.0.0.1:1,127.0.0.1:2?restart_delay=1ms", backend.OpenConfig{})
	require.ErrorIs(t, err, backend.ErrInvalid)
	require.ErrorContains(t, err, "restart delay of 1ms is less than the TTL of 15s")
	_, err = backend.DefaultMux.Open(t.Context(), "redlock://127.0.0.1:1,127.0.0.1:1", backend.OpenConfig{})
	require.ErrorIs(t, err, backend.ErrInvalid)
	require.ErrorContains(t, err, "given twice")
	_, err = backend.DefaultMux.Open(t.Context(), "redlock://:secret@127.0.0.1:1,127.0.0.1:2", backend.OpenConfig{})
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.NotContains(t, err.Error(), "secret")
	_, _, err = optionsOf(t, "redlock://a", time.Millisecond)
	require.ErrorIs(t, err, backend.ErrInvalid)
	require.ErrorContains(t, err, "redlock accepts")
}

// TestTLS: the nodes are spoken to in TLS alone, they and the client show each
// other certificates, and the password is that of each node.
func TestTLS(t *testing.T) {
	t.Parallel()
	ours := servertest.NewAuthority(t, "ours")
	cert, key := ours.Client("client")
	var addresses, elsewhere, plain []string
	for range 3 {
		server := servertest.Redis(t, servertest.WithPassword("secret"))
		port := redistest.SpeakTLS(t, server, ours)
		plain = append(plain, server.Addr())
		addresses, elsewhere = append(addresses, "127.0.0.1:"+port), append(elsewhere, "localhost:"+port)
	}
	once := func(authority, parameters string) error {
		// With time enough for the handshakes.
		b, err := backend.DefaultMux.Open(t.Context(), "redlock://"+authority+"?node_timeout=10s&"+parameters, backend.OpenConfig{TTL: time.Minute})
		if err != nil {
			return err
		}
		defer b.Close()
		hold, g := backendtest.Granted(t, b, redistest.Brief(backendtest.UniqueKey(t), time.Minute))
		require.NotZero(t, g.Token)
		_, err = b.Renew(t.Context(), hold)
		require.NoError(t, err)
		return b.Release(t.Context(), hold)
	}
	open := func(authority, parameters string) error {
		for end := time.Now().Add(time.Minute); ; {
			err := once(authority, parameters)
			// All handshakes within the five seconds of an opening: a busy machine is slower.
			if err == nil || !strings.Contains(err.Error(), ": no answer") || time.Now().After(end) {
				return err
			}
			t.Logf("opened again: %v", err)
		}
	}
	nodes := strings.Join(addresses, ",")
	ca, certificate := "tls=true&ca="+ours.File(), "&cert="+cert+"&key="+key
	require.NoError(t, open(":secret@"+nodes, ca+certificate+"&new_nodes=true"))
	require.NoError(t, open(":secret@"+nodes, ca+certificate))
	for what, err := range map[string]error{
		"the system does not know the authority": open(":secret@"+nodes, "tls=true"+certificate),
		"the certificate names another host":     open(":secret@"+strings.Join(elsewhere, ","), ca+certificate),
	} {
		require.ErrorIs(t, err, backend.ErrPermanent, what)
		require.ErrorContains(t, err, "check ca, cert and key", what)
		require.NotContains(t, err.Error(), "secret", what)
	}
	require.NoError(t, open(":secret@"+strings.Join([]string{addresses[0], addresses[1], elsewhere[2]}, ","), ca+certificate), "a minority is tolerated")
	require.Error(t, open(":secret@"+nodes, ca), "the nodes ask for a certificate, and may just end the connection")
	err := open(":secret@"+nodes, "")
	require.ErrorIs(t, err, backend.ErrUnavailable, "the nodes take no connection without TLS")
	require.ErrorContains(t, err, "if the server wants TLS on this port, connect with it (tls=true, ")
	err = open(":secret@"+strings.Join(plain, ","), ca+certificate)
	require.ErrorIs(t, err, backend.ErrUnavailable, "the nodes don't understand TLS there")
	require.ErrorContains(t, err, "speaks no TLS on this port, connect without it (no tls=true,")
	require.ErrorIs(t, open(":wrong@"+nodes, ca+certificate), backend.ErrPermanent)
	require.ErrorIs(t, open(nodes, ca+certificate), backend.ErrPermanent)
}

// TestPermissions: the rules that the documentation gives for a user of its own
// suffice, also after a restart of a node.
func TestPermissions(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/backends/redlock.md")
	require.NoError(t, err)
	_, line, ok := strings.Cut(string(page), "ACL SETUSER locks on >PASSWORD ")
	require.True(t, ok)
	line, _, _ = strings.Cut(line, "\n")
	args := []any{"acl", "setuser", "locks", "on", ">pass"}
	for _, rule := range strings.Fields(line) {
		args = append(args, rule)
	}
	var hosts []string
	var admins []*goredis.Client
	for range 3 {
		s := servertest.Redis(t, servertest.WithPersistence())
		admin := redistest.Client(t, s)
		require.NoError(t, admin.Do(t.Context(), args...).Err())
		hosts, admins = append(hosts, s.Addr()), append(admins, admin)
	}
	var log bytes.Buffer
	b, err := backend.DefaultMux.Open(t.Context(), "redlock://locks:pass@"+strings.Join(hosts, ",")+"?new_nodes=true&node_timeout=5s", backend.OpenConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	defer b.Close()
	require.Empty(t, log.String())
	hold, g := backendtest.Granted(t, b, redistest.Request("k"))
	_, err = b.Try(t.Context(), redistest.Request("k"))
	require.ErrorIs(t, err, backend.ErrHeld)
	_, err = b.Renew(t.Context(), hold)
	require.NoError(t, err)
	r, err := b.(backend.Inspector).Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, g.Token, r.Token)
	var listed []string
	require.NoError(t, b.(backend.Lister).List(t.Context(), "", func(r backend.Record) bool {
		listed = append(listed, r.Key)
		return true
	}))
	require.Equal(t, []string{"k"}, listed)
	for _, admin := range admins {
		require.NoError(t, admin.ScriptFlush(t.Context()).Err())
	}
	require.NoError(t, b.Release(t.Context(), hold))
	hold, _ = backendtest.Granted(t, b, redistest.Request("k"))
	require.NoError(t, b.(backend.ForceReleaser).ForceRelease(t.Context(), "k", hold.Token))
	require.ErrorIs(t, b.Release(t.Context(), hold), backend.ErrNotHeld)
	require.NoError(t, b.(backend.Forgetter).Forget(t.Context(), "k"))
	for _, admin := range admins {
		require.Equal(t, []string{defaultPrefix + "node"}, admin.Keys(t.Context(), "*").Val())
	}
}

func TestMissingClients(t *testing.T) {
	t.Parallel()
	for _, missing := range []goredis.UniversalClient{nil, (*goredis.Client)(nil)} {
		_, err := New(t.Context(), []goredis.UniversalClient{missing}, nil)
		require.ErrorIs(t, err, backend.ErrInvalid)
	}
}
