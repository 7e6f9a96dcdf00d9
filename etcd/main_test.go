package etcdlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
)

// The run fails if a goroutine is left when every test has closed what it opened.
func TestMain(m *testing.M) {
	silentChild()
	conformance.Child(conformanceOfURL)
	goleak.VerifyTestMain(servertest.StopAfter(m))
}

// ttl is long beside what a test asks between two renewals, however busy the machine.
const ttl = 30 * time.Second

// clientOf is a client of the servers that logs nothing.
func clientOf(t testing.TB, servers ...*servertest.Server) *clientv3.Client {
	t.Helper()
	conf := clientv3.Config{Logger: zap.NewNop(), DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second}
	for _, s := range servers {
		conf.Endpoints = append(conf.Endpoints, "http://"+s.Addr())
	}
	c, err := clientv3.New(conf)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func backendOn(t testing.TB, c *clientv3.Client, opts *Options) *etcdBackend {
	t.Helper()
	b := backendtest.Opened(t, func() (backend.Backend, error) { return NewBackend(t.Context(), c, opts) })
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b.(*etcdBackend)
}

func lockerOn(t testing.TB, c *clientv3.Client, ttl time.Duration) *lock.Client {
	t.Helper()
	l := backendtest.Opened(t, func() (*lock.Client, error) { return New(t.Context(), c, &Options{Lock: lock.Options{TTL: ttl}}) })
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// shared is a backend on the shared server.
func shared(t testing.TB) (*etcdBackend, *clientv3.Client) {
	t.Helper()
	c := clientOf(t, servertest.SharedEtcd(t))
	return backendOn(t, c, nil), c
}

func request(key string) backend.Request {
	return backend.Request{Key: key, ID: backend.NewID(), TTL: ttl, Renewed: true}
}

// keysOf are the etcd keys of a lock.
func keysOf(t testing.TB, c *clientv3.Client, key string) []string {
	t.Helper()
	n := namesOf(defaultPrefix, key)
	resp, err := c.Get(t.Context(), n.dir, clientv3.WithRange(n.end), clientv3.WithKeysOnly())
	require.NoError(t, err)
	var names []string
	for _, kv := range resp.Kvs {
		names = append(names, string(kv.Key))
	}
	return names
}
