package zklock

import (
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
)

// The run fails if a goroutine is left when every test has closed what it
// opened.
func TestMain(m *testing.M) {
	conformance.Child(conformanceOfURL)
	goleak.VerifyTestMain(servertest.StopAfter(m))
}

// ttl is long beside what a test asks between two renewals, however busy the machine.
const ttl = 15 * time.Second

// longest is the longest TTL that the test servers grant.
const longest = 40 * time.Second

// backendOn is a backend, with a session of its own, on the servers.
func backendOn(t testing.TB, opts *Options, servers ...*servertest.Server) *zkBackend {
	t.Helper()
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr())
	}
	if opts == nil {
		opts = &Options{}
	}
	if opts.Lock.TTL == 0 {
		opts.Lock.TTL = ttl
	}
	b := backendtest.Opened(t, func() (backend.Backend, error) { return NewBackend(t.Context(), addrs, opts) })
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b.(*zkBackend)
}

// shared is a backend on the shared server.
func shared(t testing.TB) *zkBackend {
	t.Helper()
	return backendOn(t, nil, servertest.SharedZooKeeper(t))
}

// lockerOn is a Locker on a backend.
func lockerOn(t testing.TB, b backend.Backend) *lock.Client {
	t.Helper()
	l, err := lock.New(b, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// rawOn is a connection beside ours, as an operator has one.
func rawOn(t testing.TB, server *servertest.Server) *zk.Conn {
	t.Helper()
	conn, events, err := zk.Connect([]string{server.Addr()}, longest, zk.WithLogInfo(false))
	require.NoError(t, err)
	t.Cleanup(func() {
		conn.Close()
		for range events {
		}
	})
	return conn
}

func request(key string) backend.Request {
	return backend.Request{Key: key, ID: backend.NewID(), TTL: ttl}
}
