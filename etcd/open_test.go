package etcdlock

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
)

func configOf(t *testing.T, raw string) (clientv3.Config, string, error) {
	t.Helper()
	u, err := backend.ParseURL(raw)
	require.NoError(t, err)
	return clientConfig(u)
}

func TestURLs(t *testing.T) {
	t.Parallel()
	for raw, check := range map[string]func(c clientv3.Config, prefix string){
		"etcd:": func(c clientv3.Config, prefix string) {
			assert.Equal(t, []string{"http://localhost:2379"}, c.Endpoints)
			assert.Empty(t, prefix)
			assert.Nil(t, c.TLS)
		},
		"etcd://h1,h2:7,[::1]:3/app/locks": func(c clientv3.Config, prefix string) {
			assert.Equal(t, []string{"http://h1:2379", "http://h2:7", "http://[::1]:3"}, c.Endpoints)
			assert.Equal(t, "app/locks", prefix)
		},
		"etcds://ann:p%40ss@h": func(c clientv3.Config, _ string) {
			assert.Equal(t, []string{"https://h:2379"}, c.Endpoints)
			assert.Equal(t, "ann", c.Username)
			assert.Equal(t, "p@ss", c.Password)
			assert.NotNil(t, c.TLS)
			assert.False(t, c.TLS.InsecureSkipVerify)
		},
	} {
		c, prefix, err := configOf(t, raw)
		require.NoError(t, err, raw)
		check(c, prefix)
	}
	for raw, text := range map[string]string{
		"etcd://h?ca=x.pem":                  "write etcds://",
		"etcd://h?cert=x.pem&key=y.pem":      "write etcds://",
		"etcd://h?ttl=3s":                    "backend.CutTTL",
		"etcds://h?ca=/does/not/exist":       `parameter "ca"`,
		"etcds://h?cert=x.pem":               "cert and key are given together",
		"etcds://h?cert=/not&key=/not":       `parameters "cert" and "key"`,
		"etcd://ann@h":                       "user and password are given together",
		"etcd://:hunter2@h":                  "user and password are given together",
		"etcd://h//app":                      "one slash",
		"etcd:h:2379":                        "two slashes",
		"etcds://ann:hunter2@h?prefix=/more": `unknown parameter "prefix"`,
	} {
		_, _, err := configOf(t, raw)
		require.ErrorIs(t, err, backend.ErrInvalid, raw)
		assert.ErrorContains(t, err, text)
		assert.NotContains(t, err.Error(), "hunter2")
	}
}

func TestKeysAreApart(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	var holds []backend.Hold
	base := backendtest.UniqueKey(t)
	for _, k := range []string{"", "/", "/b", "//", "%", "%2F", "%25", "%2f", " ", "é", "0", "\U0001F600"} {
		hold, _ := backendtest.Granted(t, b, request(base+k))
		holds = append(holds, hold)
	}
	var listed []string
	require.NoError(t, b.List(t.Context(), base, func(r backend.Record) bool {
		listed = append(listed, r.Key)
		return true
	}))
	require.Len(t, listed, len(holds))
	for _, h := range holds {
		assert.Contains(t, listed, h.Key)
		assert.Len(t, keysOf(t, c, h.Key), 1)
		require.NoError(t, b.Release(t.Context(), h))
	}
}

func TestForeignKeysAreLeftAlone(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	other := backendOn(t, c, nil)
	key := backendtest.UniqueKey(t)
	n := namesOf(defaultPrefix, key)
	_, err := c.Put(t.Context(), n.dir+"README", "not ours")
	require.NoError(t, err)
	req := request(key)
	hold, grant := backendtest.Granted(t, b, req)
	_, err = other.Try(t.Context(), request(key))
	require.ErrorIs(t, err, backend.ErrHeld)
	again, err := b.Try(t.Context(), req) // whose own key is not the oldest
	require.NoError(t, err)
	require.Equal(t, grant.Token, again.Token)
	_, err = c.Put(t.Context(), n.dir+"LATER", "not ours")
	require.NoError(t, err)
	place, err := other.Enqueue(t.Context(), request(key))
	require.NoError(t, err)
	rec, err := b.Inspect(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, 1, rec.Waiters)
	require.NoError(t, b.Release(t.Context(), hold))
	_, err = place.Wait(backendtest.Short(t, time.Minute))
	require.NoError(t, err)
	require.NoError(t, place.Withdraw(t.Context()))
	require.Len(t, keysOf(t, c, key), 2)
	_, err = c.Delete(t.Context(), n.dir, clientv3.WithRange(n.end))
	require.NoError(t, err)
}

func TestTTLLimits(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	g := b.Guarantees()
	require.Equal(t, 2*time.Second, g.MinTTL, "one and a half election timeouts, rounded up")
	for ttl, text := range map[time.Duration]string{
		time.Second:                       "from 2s",
		2500 * time.Millisecond:           "not a multiple of 1s",
		9_000_000_001 * time.Second:       "to 2500000h0m0s",
		3*time.Second + time.Nanosecond:   "not a multiple",
		1*time.Second - 1*time.Nanosecond: "from 2s",
	} {
		_, err := New(t.Context(), c, &Options{Lock: lock.Options{TTL: ttl}})
		require.ErrorIs(t, err, backend.ErrInvalid)
		assert.ErrorContains(t, err, text)
	}
	longest := request(backendtest.UniqueKey(t))
	longest.TTL = g.MaxTTL
	hold, _ := backendtest.Granted(t, b, longest)
	require.NoError(t, b.Release(t.Context(), hold))
}

func TestLongerElectionsRaiseTheMinimum(t *testing.T) {
	t.Parallel()
	b := backendOn(t, clientOf(t, servertest.Etcd(t, servertest.WithArgs("--heartbeat-interval", "300", "--election-timeout", "3000"))), nil)
	require.Equal(t, 5*time.Second, b.Guarantees().MinTTL)
}

func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts and says nothing
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	for _, address := range []string{addr, silent.Addr().String()} {
		start := time.Now()
		_, err = lock.Open(backendtest.Short(t, 2*time.Second), "etcd://"+address+"/x", nil)
		require.ErrorIs(t, err, backend.ErrUnavailable)
		assert.ErrorContains(t, err, "etcd://"+address+"/x")
		if address == addr {
			assert.ErrorContains(t, err, "connection refused", "not only that the time is over")
		}
		assert.Less(t, time.Since(start), 30*time.Second)
	}
	_, err = NewBackend(t.Context(), nil, nil)
	require.ErrorIs(t, err, backend.ErrInvalid)
	_, err = newBackend(clientOf(t, servertest.SharedEtcd(t)), strings.Repeat("x", 200))
	require.ErrorIs(t, err, backend.ErrInvalid)
}

// users makes a user with permission on locks/ and one without any, and switches
// authentication on.
func users(t *testing.T, args ...string) *servertest.Server {
	t.Helper()
	s := servertest.Etcd(t, servertest.WithArgs(append(args, "--bcrypt-cost", "4")...)) // a password costs little
	c := clientOf(t, s)
	ctx := t.Context()
	for _, u := range []string{"root", "ann", "bob"} {
		_, err := c.UserAdd(ctx, u, "pass word/@")
		require.NoError(t, err)
	}
	for _, r := range []string{"root", "locks"} {
		_, err := c.RoleAdd(ctx, r)
		require.NoError(t, err)
	}
	_, err := c.RoleGrantPermission(ctx, "locks", "locks/", clientv3.GetPrefixRangeEnd("locks/"), clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(t, err)
	_, err = c.UserGrantRole(ctx, "root", "root")
	require.NoError(t, err)
	_, err = c.UserGrantRole(ctx, "ann", "locks")
	require.NoError(t, err)
	_, err = c.AuthEnable(ctx)
	require.NoError(t, err)
	return s
}

func TestUsers(t *testing.T) {
	t.Parallel()
	s := users(t, "--auth-token-ttl", "1") // so that tokens expire under the clients
	at := func(user, path string) string {
		if user != "" {
			user += ":" + url.PathEscape("pass word/@") + "@"
		}
		return "etcd://" + user + s.Addr() + path
	}
	var renewals atomic.Int64
	l, err := lock.Open(t.Context(), at("ann", "/locks"), &lock.Options{TTL: 9 * time.Second, Observer: func(_ context.Context, e lock.Event) {
		if e.Kind == lock.EventRenewed {
			renewals.Add(1)
		}
	}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	for range 2 {
		before := renewals.Load()
		lease, err := l.Acquire(t.Context(), "k")
		require.NoError(t, err)
		backendtest.Eventually(t, "it is renewed", func() bool { return renewals.Load() > before })
		require.NoError(t, lease.Context().Err())
		_, err = l.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, lock.ErrHeld)
		require.NoError(t, lease.Release(t.Context()))
		time.Sleep(2500 * time.Millisecond) // nothing is asked
	}
	for what, raw := range map[string]string{
		"no user":                 at("", "/locks"),
		"wrong password":          "etcd://ann:hunter2@" + s.Addr() + "/locks",
		"another prefix":          at("ann", "/other"),
		"no permission at all":    at("bob", "/locks"),
		"a prefix of the allowed": at("ann", "/lock"),
	} {
		_, err := lock.Open(t.Context(), raw, nil)
		require.ErrorIs(t, err, backend.ErrPermanent, what)
		assert.NotContains(t, err.Error(), "hunter2")
		assert.NotContains(t, err.Error(), "pass word")
	}
}

// A lease that was granted for an acquisition whose key may not be written is revoked
// at once, and not left to its TTL.
func TestLeaseOfAnAcquisitionThatFails(t *testing.T) {
	t.Parallel()
	s := users(t)
	connect := func(user string) *clientv3.Client {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + s.Addr()}, Username: user, Password: "pass word/@", Logger: zap.NewNop()})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		return c
	}
	root := connect("root")
	b := backendOn(t, connect("ann"), &Options{Prefix: "locks"})
	leases := func() int {
		resp, err := root.Leases(t.Context())
		require.NoError(t, err)
		return len(resp.Leases)
	}
	backendtest.Eventually(t, "what opening asked for has ended", func() bool { return leases() == 0 })
	_, err := root.RoleGrantPermission(t.Context(), "locks", "locks/", clientv3.GetPrefixRangeEnd("locks/"), clientv3.PermissionType(clientv3.PermRead))
	require.NoError(t, err)
	for range 10 {
		req := request(backendtest.UniqueKey(t))
		req.Renewed = false
		_, err = b.Try(t.Context(), req)
		require.ErrorIs(t, err, backend.ErrPermanent)
		req.ID = backend.NewID()
		_, err = b.Enqueue(t.Context(), req)
		require.ErrorIs(t, err, backend.ErrPermanent)
	}
	backendtest.Eventually(t, "no lease is left", func() bool { return leases() == 0 })
	require.Empty(t, b.acquisitions)
}

func TestFullServer(t *testing.T) {
	t.Parallel()
	s := servertest.Etcd(t, servertest.WithArgs("--quota-backend-bytes", "200000"))
	c := clientOf(t, s)
	b := backendOn(t, c, nil)
	hold, _ := backendtest.Granted(t, b, request("held"))
	// The server looks at its size when it writes to its file, ten times a second.
	backendtest.Eventually(t, "the quota is reached", func() bool {
		_, err := c.Put(t.Context(), "filler", strings.Repeat("x", 50_000))
		return err != nil
	})
	_, err := b.Try(t.Context(), request("other"))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	_, err = b.Enqueue(t.Context(), request("other"))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	_, err = b.Renew(t.Context(), hold)
	require.NoError(t, err)
	require.NoError(t, b.Release(t.Context(), hold))
}

func TestFaultyVersions(t *testing.T) {
	t.Parallel()
	for v, faulty := range map[string]bool{
		"3.4.23": true, "3.4.38": true, "3.5.0": true, "3.5.22": true, "3.5.23": false, "3.5.24-rc.1": false, "3.6.0": true, "3.6.4": true,
		"3.6.5": false, "3.6.14": false, "3.7.0": false, "4.0.0": false, "2.3.8": true, "": false, "3.6": false, "x.y.z": false,
	} {
		assert.Equal(t, faulty, forgetsRevocations(v), v)
	}
	var log bytes.Buffer
	server := servertest.SharedEtcd(t)
	l, err := lock.Open(t.Context(), server.URL(), &lock.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	require.NoError(t, l.Close())
	assert.Equal(t, forgetsRevocations(server.Version()), strings.Contains(log.String(), "3.5.23"), log.String())
}

func TestClosedClient(t *testing.T) {
	t.Parallel()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + servertest.SharedEtcd(t).Addr()}, Logger: zap.NewNop()})
	require.NoError(t, err)
	b := backendOn(t, c, nil)
	hold, _ := backendtest.Granted(t, b, request(backendtest.UniqueKey(t)))
	require.NoError(t, c.Close())
	_, err = b.Try(backendtest.Short(t, time.Minute), request(backendtest.UniqueKey(t)))
	require.ErrorIs(t, err, backend.ErrPermanent)
	assert.ErrorContains(t, err, "closed before the Locker")
	_, err = b.Renew(backendtest.Short(t, time.Minute), hold)
	require.ErrorIs(t, err, backend.ErrPermanent)
}
