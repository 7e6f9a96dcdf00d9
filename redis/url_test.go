package redislock

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/failure"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

func optionsOf(t *testing.T, raw string, ttl time.Duration) (*goredis.UniversalOptions, string, error) {
	t.Helper()
	u, err := backend.ParseURL(raw)
	require.NoError(t, err)
	parsed, err := readURL(u, ttl)
	return parsed.client, parsed.prefix, err
}

func TestURLs(t *testing.T) {
	t.Parallel()
	for raw, check := range map[string]func(o *goredis.UniversalOptions, prefix string){
		"redis:": func(o *goredis.UniversalOptions, prefix string) {
			require.Equal(t, []string{"localhost:6379"}, o.Addrs)
			require.Equal(t, "lock:", prefix)
			require.Nil(t, o.TLSConfig)
			require.True(t, o.ContextTimeoutEnabled)
			require.Less(t, o.ReadTimeout, 5*time.Second)
		},
		"redis://h": func(o *goredis.UniversalOptions, _ string) {
			require.Equal(t, []string{"h:6379"}, o.Addrs)
			require.Zero(t, o.DB)
		},
		"redis://[::1]:7000/3?prefix=app%3A&pool_size=7&dial_timeout=250ms": func(o *goredis.UniversalOptions, prefix string) {
			require.Equal(t, []string{"[::1]:7000"}, o.Addrs)
			require.Equal(t, 3, o.DB)
			require.Equal(t, "app:", prefix)
			require.Equal(t, 7, o.PoolSize)
			require.Equal(t, 250*time.Millisecond, o.DialTimeout)
		},
		"redis://:p%40ss@h/": func(o *goredis.UniversalOptions, _ string) {
			require.Empty(t, o.Username)
			require.Equal(t, "p@ss", o.Password)
		},
		"redis://ann:pass@h,i:5/2?master=main&sentinel_user=s&sentinel_password=t": func(o *goredis.UniversalOptions, _ string) {
			require.Equal(t, []string{"h:26379", "i:5"}, o.Addrs)
			require.Equal(t, "main", o.MasterName)
			require.Equal(t, "ann", o.Username)
			require.Equal(t, "pass", o.Password)
			require.Equal(t, "s", o.SentinelUsername)
			require.Equal(t, "t", o.SentinelPassword)
			require.Equal(t, 2, o.DB)
		},
		"redis://h,i?cluster=true": func(o *goredis.UniversalOptions, _ string) {
			require.True(t, o.IsClusterMode)
			require.Equal(t, []string{"h:6379", "i:6379"}, o.Addrs)
		},
		"rediss://h": func(o *goredis.UniversalOptions, _ string) {
			require.NotNil(t, o.TLSConfig)
			require.False(t, o.TLSConfig.InsecureSkipVerify)
		},
	} {
		o, prefix, err := optionsOf(t, raw, 15*time.Second)
		require.NoError(t, err, raw)
		check(o, prefix)
	}
	o, _, err := optionsOf(t, "redis://h", 300*time.Millisecond)
	require.NoError(t, err)
	require.Less(t, o.ReadTimeout, 100*time.Millisecond)
}

func TestBadURLs(t *testing.T) {
	t.Parallel()
	for raw, text := range map[string]string{
		"redis://h?unknown=1":                    "unknown",
		"redis://h?ca=/x":                        "write rediss://",
		"redis://h?cert=/x&key=/y":               "write rediss://",
		"redis://h?pool_size=many":               "pool_size",
		"redis://h?pool_size=-1":                 "pool_size",
		"redis://h?dial_timeout=5":               "dial_timeout",
		"redis://h?dial_timeout=-5s":             "dial_timeout",
		"redis://h?prefix=a&prefix=b":            "prefix",
		"redis://h?prefix=":                      "prefix",
		"redis://h/x":                            "database",
		"redis://h/-1":                           "database",
		"redis://h/01":                           "database",
		"redis:h:6379":                           "two slashes",
		"redis://h,i":                            "several hosts",
		"redis://h?cluster=perhaps":              "cluster",
		"redis://h/1?cluster=true":               "database 0",
		"redis://h?cluster=true&master=m":        "exclude",
		"redis://h?sentinel_password=secret":     "master",
		"redis://h?master=m&sentinel_user=u":     "sentinel_password",
		"redis://ann@h":                          "password",
		"rediss://h?ca=/does/not/exist.pem":      "ca",
		"rediss://h?cert=/does/not/exist.pem":    "key",
		"rediss://h?cert=/no.pem&key=/no.key":    "cert",
		"rediss://ann:secret@h?insecure=true":    "insecure",
		"redis://ann:secret@h?master=m&master=n": "master",
	} {
		u, err := backend.ParseURL(raw)
		require.NoError(t, err, raw)
		_, err = Opener(t.Context(), u, backend.OpenConfig{TTL: ttl})
		require.ErrorIs(t, err, backend.ErrInvalid, raw)
		require.ErrorContains(t, err, text, raw)
		require.NotContains(t, err.Error(), "secret", raw)
	}
	for _, prefix := range []string{"%07", "%7B%7Dapp", "a%7B%7D%7Bb%7D"} {
		u, err := backend.ParseURL("redis://h?prefix=" + prefix)
		require.NoError(t, err)
		_, err = Opener(t.Context(), u, backend.OpenConfig{TTL: ttl})
		require.ErrorIs(t, err, backend.ErrInvalid, prefix)
	}
}

func TestOpenByURL(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, servertest.WithPassword("pass-secret"))
	open := func(url string) (backend.Backend, error) {
		return backend.DefaultMux.Open(t.Context(), url, backend.OpenConfig{TTL: ttl})
	}
	key := backendtest.UniqueKey(t)
	b, err := open(server.URL() + "/1?prefix=p:")
	require.NoError(t, err)
	hold, _ := backendtest.Granted(t, b, redistest.Request(key))
	other, err := open(server.URL() + "/2?prefix=p:")
	require.NoError(t, err)
	backendtest.Granted(t, other, redistest.Request(key))
	require.NoError(t, other.Close())
	_, err = b.Renew(t.Context(), hold)
	require.NoError(t, err)
	require.NoError(t, b.Close())
	_, err = b.Renew(t.Context(), hold)
	require.ErrorIs(t, err, backend.ErrPermanent, "the backend's own client is closed with it")

	_, err = open("redis://:wrong-secret@" + server.Addr())
	require.ErrorIs(t, err, backend.ErrPermanent)
	require.NotContains(t, err.Error(), "secret")
	_, err = open(server.URL() + "/4711")
	require.ErrorIs(t, err, backend.ErrPermanent)

	began := time.Now()
	_, err = open("redis://:a-secret@127.0.0.1:1")
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, "127.0.0.1:1")
	require.NotContains(t, err.Error(), "secret")
	require.Less(t, time.Since(began), 30*time.Second)
	_, err = open("redis://127.0.0.1:1?master=main")
	require.ErrorIs(t, err, backend.ErrUnavailable)
	_, err = open("redis://127.0.0.1:1?cluster=true")
	require.ErrorIs(t, err, backend.ErrUnavailable)
}

// A command that is alone goes on a line, and those beside it do not.
func TestServerThatIsAwayIsUnavailable(t *testing.T) {
	t.Parallel()
	p := servertest.Proxy(t, servertest.SharedRedis(t).Addr())
	b, err := backend.DefaultMux.Open(t.Context(), servertest.SharedRedis(t).URLAt(p.Addr()), backend.OpenConfig{TTL: ttl})
	require.NoError(t, err)
	defer b.Close()
	p.Refuse()
	p.Cut()
	for range 3 { // for each connection that there was
		_, _ = b.Try(t.Context(), redistest.Request(backendtest.UniqueKey(t)))
	}
	var all sync.WaitGroup
	for range 4 * maxFlights {
		all.Go(func() {
			_, err := b.Try(t.Context(), redistest.Request(backendtest.UniqueKey(t)))
			assert.ErrorIs(t, err, backend.ErrUnavailable)
		})
	}
	all.Wait()
	_, err = b.(*redisBackend).client.Get(t.Context(), "key").Result()
	require.True(t, failure.DialFailed(err), "go-redis has taken too much off: %v", err)
}

func TestOpenIsBoundByItsContext(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, servertest.WithControl())
	server.Freeze(t)
	_, err := backend.DefaultMux.Open(backendtest.Short(t, 100*time.Millisecond), server.URL(), backend.OpenConfig{TTL: time.Minute})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, backend.ErrUnavailable)
	server.Resume(t)
}

func TestTLS(t *testing.T) {
	t.Parallel()
	ours := servertest.NewAuthority(t, "ours")
	cert, key := ours.Client("client")
	server := servertest.Redis(t)
	tlsPort := redistest.SpeakTLS(t, server, ours)
	open := func(url string) error {
		b, err := backend.DefaultMux.Open(t.Context(), url, backend.OpenConfig{TTL: time.Minute})
		if err == nil {
			backendtest.Granted(t, b, redistest.Request(backendtest.UniqueKey(t)))
			require.NoError(t, b.Close())
		}
		return err
	}
	const patient = "dial_timeout=1m&" // the first time, the authorities of the system are read
	address := "rediss://127.0.0.1:" + tlsPort
	require.NoError(t, open(address+"?ca="+ours.File()+"&cert="+cert+"&key="+key))
	require.Error(t, open(address+"?ca="+ours.File()), "the server asks for a certificate")
	require.ErrorIs(t, open(address+"?"+patient+"cert="+cert+"&key="+key), backend.ErrPermanent, "the system does not know the authority")
	err := open("rediss://localhost:" + tlsPort + "?ca=" + ours.File() + "&cert=" + cert + "&key=" + key)
	require.ErrorIs(t, err, backend.ErrPermanent, "the certificate names another host")
	require.ErrorContains(t, err, "check ca, cert and key")
	require.ErrorContains(t, open("redis://127.0.0.1:"+tlsPort), "if the server wants TLS on this port, write rediss://")
	require.ErrorContains(t, open("rediss://"+server.Addr()), "if the server speaks no TLS on this port, write redis://")
	require.NotContains(t, open("rediss://127.0.0.1:1").Error(), "TLS", "nobody listens there")
}

// What answers in words of its own is no server with TLS for certain.
func TestTLSOnAPortOfWords(t *testing.T) {
	t.Parallel()
	addr := servertest.Words(t, "HTTP/1.1 400 Bad Request\r\n\r\n")
	_, err := backend.DefaultMux.Open(t.Context(), "rediss://"+addr, backend.OpenConfig{TTL: ttl})
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, "the server speaks no TLS on this port: write redis:// in place of rediss://")
}

func TestSettingsAreChecked(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, servertest.WithPersistence())
	admin := redistest.Client(t, server)
	open := func(c *goredis.Client) string {
		var log bytes.Buffer
		o := &Options{}
		o.Lock.Logger = slog.New(slog.NewTextHandler(&log, nil))
		b, err := NewBackend(t.Context(), c, o)
		require.NoError(t, err)
		require.NoError(t, b.Close())
		return log.String()
	}
	require.Empty(t, open(admin))
	for _, policy := range []string{"allkeys-lru", "volatile-ttl"} {
		require.NoError(t, admin.ConfigSet(t.Context(), "maxmemory-policy", policy).Err())
		require.Contains(t, open(admin), policy)
	}
	require.NoError(t, admin.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err())

	for _, timeout := range []time.Duration{time.Minute, -1, -2} { // the negative ones: none
		patient := goredis.NewClient(&goredis.Options{Addr: server.Addr(), ReadTimeout: timeout})
		require.Contains(t, open(patient), "ContextTimeoutEnabled", timeout)
		require.NoError(t, patient.Close())
		obedient := goredis.NewClient(&goredis.Options{Addr: server.Addr(), ReadTimeout: timeout, ContextTimeoutEnabled: true})
		require.Empty(t, open(obedient), timeout)
		require.NoError(t, obedient.Close())
	}

	require.NoError(t, admin.Do(t.Context(), "acl", "setuser", "few", "on", ">pass", "~*", "resetchannels", "+@all", "-info").Err())
	few := goredis.NewClient(&goredis.Options{Addr: server.Addr(), Username: "few", Password: "pass"})
	text := open(few)
	require.Contains(t, text, "INFO")
	require.Contains(t, text, "publish")
	require.NoError(t, few.Close())
}

func TestClientsThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, missing := range []goredis.UniversalClient{nil, (*goredis.Client)(nil), (*goredis.ClusterClient)(nil)} {
		_, err := NewBackend(t.Context(), missing, nil)
		require.ErrorIs(t, err, backend.ErrInvalid)
		_, err = New(t.Context(), missing, nil)
		require.ErrorIs(t, err, backend.ErrInvalid)
	}
	ring := goredis.NewRing(&goredis.RingOptions{})
	_, err := NewBackend(t.Context(), ring, nil)
	require.ErrorIs(t, err, backend.ErrUnsupported)
	require.NoError(t, ring.Close())
	c := goredis.NewClient(&goredis.Options{})
	for _, prefix := range []string{"a\nb", string([]byte{0xff}), string(make([]byte, 129))} {
		_, err = NewBackend(t.Context(), c, &Options{Prefix: prefix})
		require.ErrorIs(t, err, backend.ErrInvalid)
	}
	require.NoError(t, c.Close())
}
