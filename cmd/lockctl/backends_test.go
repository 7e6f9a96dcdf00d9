//go:build unix

package main

import (
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/servertest"
)

// place is one backend that the tool's tests run on, other than memory, which has
// nothing to show to another process. The other forms and servers are for the packages of the
// backends: to the tool they look alike.
type place struct {
	name string
	// url is that of keys that no other test uses.
	url func(t *testing.T) string
	// own is the URL of a server of the test's own, and what ends that server.
	own func(t *testing.T) (url string, kill func())
	// waiters: the server knows who waits.
	waiters bool
}

var places = []place{
	{name: "file", url: func(t *testing.T) string { return "file:" + t.TempDir() }},
	{
		name: "redis",
		url:  func(t *testing.T) string { return servertest.SharedRedis(t).URL() + "?prefix=" + unique() + ":" },
		own:  ownServer(servertest.Redis, ""),
	},
	{
		name: "redlock",
		url: func(t *testing.T) string {
			var addrs []string
			for range 3 {
				addrs = append(addrs, servertest.Redis(t).Addr())
			}
			// The nodes of a busy machine have time to answer: a quarter of the shortest TTL.
			return usedRedlock(t, addrs) + "?node_timeout=" + (takenTTL / 4).String()
		},
	},
	{name: "mysql table on MySQL", url: mysqlURL(servertest.SharedMySQL, "table")},
	{name: "mysql row on MariaDB", url: mysqlURL(servertest.SharedMariaDB, "row"), own: ownServer(servertest.MariaDB, "?mode=row")},
	{
		name:    "etcd",
		url:     func(t *testing.T) string { return "etcd://" + servertest.SharedEtcd(t).Addr() + "/" + unique() },
		own:     ownServer(servertest.Etcd, ""),
		waiters: true,
	},
	{
		name:    "zookeeper",
		url:     func(t *testing.T) string { return servertest.SharedZooKeeper(t).URL() + "?prefix=" + unique() },
		own:     ownServer(servertest.ZooKeeper, ""),
		waiters: true,
	},
}

// nearby runs a test on a directory and on a server, where it is about the tool and
// not about the backend.
func nearby(t *testing.T, f func(t *testing.T, p place)) {
	t.Parallel()
	for _, p := range places[:2] {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			f(t, p)
		})
	}
}

// usedRedlock is the URL of servers that were said to be new when they were first used,
// so that they grant at once.
func usedRedlock(t *testing.T, addrs []string) string {
	t.Helper()
	url := "redlock://" + strings.Join(addrs, ",")
	l, err := lock.Open(t.Context(), url+"?new_nodes=true", nil)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return url
}

func mysqlURL(shared func(servertest.TB) *servertest.Server, mode string) func(t *testing.T) string {
	return func(t *testing.T) string {
		return shared(t).URL() + "?mode=" + mode + "&table=locks_" + unique()
	}
}

func ownServer(start func(servertest.TB, ...servertest.Option) *servertest.Server, parameters string) func(t *testing.T) (string, func()) {
	return func(t *testing.T) (string, func()) {
		s := start(t, servertest.WithControl())
		return s.URL() + parameters, func() { s.Kill(t) }
	}
}

var uniques atomic.Uint64

// unique is a name that no other test, and no earlier run, uses.
func unique() string {
	return strconv.FormatInt(time.Now().UnixNano(), 36) + "x" + strconv.FormatUint(uniques.Add(1), 36)
}

// everywhere runs a test on each of the places at once.
func everywhere(t *testing.T, f func(t *testing.T, p place)) {
	t.Parallel()
	for _, p := range places {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			f(t, p)
		})
	}
}
