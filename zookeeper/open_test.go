package zklock

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
)

func openURL(t testing.TB, url string, opts *lock.Options) (*lock.Client, error) {
	t.Helper()
	l, err := lock.Open(backendtest.Short(t, 2*time.Minute), url, opts)
	if err == nil {
		t.Cleanup(func() { _ = l.Close() })
	}
	return l, err
}

func TestOpenRefusesBadURLs(t *testing.T) {
	t.Parallel()
	for url, part := range map[string]string{
		"zk://h?nonsense=1":          "nonsense",
		"zk://h?prefix=":             "prefix",
		"zk://h?prefix=a//b":         "paths",
		"zk://h/a/../b":              "paths",
		"zk://h?prefix=zookeeper":    "belongs to the servers",
		"zk://h?acl=creator":         "needs a user",
		"zk://h?acl=all":             "acl",
		"zk://user@h":                "needs a password",
		"zk://h/%00":                 "paths",
		"zk://user:hunter2@h?acl=no": "acl",
		"zk://us%3Aer:hunter2@h":     "no colon",
	} {
		_, err := openURL(t, url, nil)
		require.ErrorIs(t, err, backend.ErrInvalid, url)
		assert.Contains(t, err.Error(), part, url)
		assert.NotContains(t, err.Error(), "hunter2")
	}
	for _, ttl := range []time.Duration{1500 * time.Microsecond, 48 * time.Hour} {
		_, err := openURL(t, "zk://h", &lock.Options{TTL: ttl})
		require.ErrorIs(t, err, backend.ErrInvalid, "%s", ttl)
	}
	_, err := New(t.Context(), nil, nil)
	require.ErrorIs(t, err, backend.ErrInvalid)
}

func TestOpenWithoutServer(t *testing.T) {
	t.Parallel()
	_, err := openURL(t, "zk://user:hunter2@127.0.0.1:1,127.0.0.1:2", nil)
	require.ErrorIs(t, err, backend.ErrUnavailable)
	assert.NotContains(t, err.Error(), "hunter2")
	require.NotErrorIs(t, err, context.DeadlineExceeded, "that nobody listens is told at once")

	// One that accepts and never answers.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = lock.Open(ctx, "zk://"+silent.Addr().String(), nil)
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// A connection that ends before an answer, as under a server that is slow, fails no opening.
func TestOpenOutlivesALostReply(t *testing.T) {
	t.Parallel()
	server := servertest.SharedZooKeeper(t)
	for n, lost := 2, true; lost; n++ { // the first is the handshake, whose failure is told at once
		proxy := servertest.Proxy(t, server.Addr())
		proxy.DropReplyTo(n)
		l, err := openURL(t, "zk://"+proxy.Addr()+"/?prefix=lost-"+backend.NewID().Hex(), nil)
		require.NoError(t, err, "without the reply to request %d", n)
		lost = proxy.Lost() > 0
		require.True(t, lost || n > 4, "the replies to the opening were %d", n-1)
		require.NoError(t, l.Close())
	}
}

func TestTTLIsThatOfTheSession(t *testing.T) {
	t.Parallel()
	server := servertest.ZooKeeper(t, servertest.WithArgs("minSessionTimeout=4000", "maxSessionTimeout=12000"))
	for asked, limit := range map[time.Duration]string{2 * time.Second: "at least 4s", 20 * time.Second: "at most 12s"} {
		_, err := openAnswered(t, server.URL(), &lock.Options{TTL: asked})
		require.ErrorIs(t, err, backend.ErrInvalid)
		require.ErrorContains(t, err, limit)
	}
	_, err := openAnswered(t, server.URL(), &lock.Options{TTL: lock.DefaultTTL})
	require.ErrorIs(t, err, backend.ErrInvalid, "asked for, although it is the default")
	require.ErrorContains(t, err, "12s")
	l, err := openAnswered(t, server.URL(), nil)
	require.NoError(t, err)
	assert.Equal(t, 12*time.Second, l.Guarantees().MaxTTL, "the nearest to the default")
	_, err = l.TryAcquire(t.Context(), backendtest.UniqueKey(t), lock.WithTTL(5*time.Second))
	require.ErrorIs(t, err, backend.ErrInvalid)
	require.ErrorContains(t, err, "12s")
	lease, err := l.TryAcquire(t.Context(), backendtest.UniqueKey(t), lock.WithTTL(12*time.Second))
	require.NoError(t, err)
	require.NoError(t, lease.Release(t.Context()))
}

// openAnswered opens again where a busy machine has had no answer in time.
func openAnswered(t *testing.T, url string, opts *lock.Options) (*lock.Client, error) {
	for end := time.Now().Add(2 * time.Minute); ; {
		l, err := openURL(t, url, opts)
		if !errors.Is(err, lock.ErrUnavailable) || time.Now().After(end) {
			return l, err
		}
	}
}

func TestChrootAndPrefix(t *testing.T) {
	t.Parallel()
	server := servertest.SharedZooKeeper(t)
	conn := rawOn(t, server)
	chroot := "/chroot-" + backend.NewID().Hex()
	_, err := openURL(t, server.URL()+chroot, nil)
	require.ErrorIs(t, err, backend.ErrInvalid)
	require.ErrorContains(t, err, "create "+chroot)

	_, err = conn.Create(chroot, nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	_, err = conn.Create(chroot+"/taken", []byte("data"), 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	_, err = openURL(t, server.URL()+chroot+"?prefix=taken", nil)
	require.ErrorIs(t, err, backend.ErrPermanent)
	require.ErrorContains(t, err, chroot+"/taken")

	one, err := openURL(t, server.URL()+chroot+"?prefix=one/two", nil)
	require.NoError(t, err)
	other, err := openURL(t, server.URL()+chroot, nil)
	require.NoError(t, err)
	for _, l := range []lock.Locker{one, other} {
		_, err := l.TryAcquire(t.Context(), "the same key")
		require.NoError(t, err, "different prefixes don't exclude each other")
	}
	for _, path := range []string{chroot + "/one/two", chroot + "/locks"} {
		children, _, err := conn.Children(path)
		require.NoError(t, err)
		assert.ElementsMatch(t, []string{"the%20same%20key", "%floor"}, children)
	}
}

func TestPermissions(t *testing.T) {
	t.Parallel()
	server := servertest.SharedZooKeeper(t)
	hosts := strings.TrimPrefix(server.URL(), "zk://")
	prefix := "?prefix=secret-" + backend.NewID().Hex()
	key := backendtest.UniqueKey(t)
	ann, err := openURL(t, "zk://ann:hunter2@"+hosts+prefix, nil)
	require.NoError(t, err)
	lease, err := ann.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	for _, who := range []string{"", "bob:hunter2@", "ann:wrong@"} {
		_, err := openURL(t, "zk://"+who+hosts+prefix, nil)
		require.ErrorIs(t, err, backend.ErrPermanent, who)
		assert.NotContains(t, err.Error(), "hunter2")
		assert.NotContains(t, err.Error(), "wrong")
	}
	again, err := openURL(t, "zk://ann:hunter2@"+hosts+prefix+"&acl=creator", nil)
	require.NoError(t, err)
	_, err = again.TryAcquire(t.Context(), key)
	require.ErrorIs(t, err, backend.ErrHeld)

	// The credentials are given again on every connection.
	b := ann.Backend().(*zkBackend)
	b.current.mu.Lock()
	_ = b.current.link.Close()
	b.current.mu.Unlock()
	if err := lease.Release(t.Context()); err != nil { // sent on the connection that was closed
		require.ErrorIs(t, err, backend.ErrOutcomeUnknown)
	}
	lease, err = again.Acquire(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, lease.Release(t.Context()))

	// Permission that is withdrawn later.
	conn := rawOn(t, server)
	require.NoError(t, conn.AddAuth("digest", []byte("ann:hunter2")))
	dir := b.dir(key)
	_, err = conn.SetACL(dir, zk.DigestACL(zk.PermAll, "carol", "x"), -1)
	require.NoError(t, err)
	for _, acquire := range []func(context.Context, string, ...lock.Option) (lock.Lease, error){again.TryAcquire, again.Acquire} {
		_, err = acquire(t.Context(), key)
		require.ErrorIs(t, err, backend.ErrPermanent, "waiting does not cure it")
	}
}

// TestALookMakesNoNode: who only looks makes no node, and is told that there is none.
func TestALookMakesNoNode(t *testing.T) {
	t.Parallel()
	server := servertest.SharedZooKeeper(t)
	prefix := "look-" + backend.NewID().Hex()
	var log bytes.Buffer
	b, err := backend.DefaultMux.Open(t.Context(), server.URL()+"?prefix="+prefix+"/deep",
		backend.OpenConfig{LookOnly: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	defer b.Close()
	require.Contains(t, log.String(), "prefix=/"+prefix+"/deep")
	require.Contains(t, log.String(), "does not exist")
	_, err = b.(backend.Inspector).Inspect(t.Context(), "k")
	require.ErrorIs(t, err, backend.ErrNotHeld)
	require.NoError(t, b.(backend.Lister).List(t.Context(), "", func(backend.Record) bool {
		assert.Fail(t, "nobody holds anything")
		return true
	}))
	require.ErrorIs(t, b.(backend.ForceReleaser).ForceRelease(t.Context(), "k", 1), backend.ErrNotHeld)
	require.ErrorIs(t, b.(backend.Revoker).Revoke(t.Context(), "k", 1), backend.ErrNotHeld)
	exists, _, err := rawOn(t, server).Exists("/" + prefix)
	require.NoError(t, err)
	require.False(t, exists)

	used, err := openURL(t, server.URL()+"?prefix="+prefix+"/deep", nil)
	require.NoError(t, err)
	lease, err := used.TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	rec, err := b.(backend.Inspector).Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, lease.Token(), rec.Token)
}
