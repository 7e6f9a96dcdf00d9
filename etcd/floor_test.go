package etcdlock

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
)

// floorNow is the floor that the backend goes by.
func floorNow(t testing.TB, b *etcdBackend) floor {
	t.Helper()
	f, err := b.knownFloor(t.Context())
	require.NoError(t, err)
	return f
}

// apart is a key space of the test's own.
func apart(t testing.TB) (*clientv3.Client, *Options) {
	t.Helper()
	return clientOf(t, servertest.SharedEtcd(t)), &Options{Prefix: "floor/" + backendtest.UniqueKey(t), Lock: lock.Options{TTL: ttl}}
}

// once is the token of a grant that is released again.
func once(t testing.TB, b *etcdBackend, key string, queue bool) uint64 {
	t.Helper()
	return backendtest.TokenOf(t, b, request(key), queue)
}

// A cluster that was never used before follows on any store that counts from the clock.
func TestTokensBeginAtTheClock(t *testing.T) {
	t.Parallel()
	c, opts := apart(t)
	before := uint64(time.Now().UnixMicro())
	a, b := backendOn(t, c, opts), backendOn(t, c, opts)
	for _, queue := range []bool{false, true} {
		last := once(t, a, "k", queue)
		assert.Greater(t, last, before)
		assert.Greater(t, once(t, b, "k", queue), last, "another client counts on from the same floor")
	}
}

// A floor that is raised counts for clients that were opened before, and for those who wait
// already; what is held keeps its token, in every view.
func TestFloorIsRaisedForEverybody(t *testing.T) {
	t.Parallel()
	c, opts := apart(t)
	a, b := backendOn(t, c, opts), backendOn(t, c, opts)
	l, err := New(t.Context(), c, opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	held, err := l.TryAcquire(t.Context(), "held")
	require.NoError(t, err)
	req := request("held")
	waits, err := b.Enqueue(t.Context(), req)
	require.NoError(t, err)
	once(t, a, "k", false)
	once(t, b, "k", false)

	floor := uint64(time.Now().Add(time.Hour).UnixMicro())
	require.NoError(t, a.RaiseFloor(t.Context(), floor))
	assert.Greater(t, once(t, b, "k", false), floor, "by a try")
	assert.Greater(t, once(t, b, "other", true), floor, "by a place in the queue")
	require.NoError(t, b.RaiseFloor(t.Context(), floor-1), "it is as high already")
	assert.Greater(t, once(t, a, "k", false), floor)

	rec, err := b.Inspect(t.Context(), "held")
	require.NoError(t, err)
	assert.Equal(t, held.Token(), rec.Token)
	require.NoError(t, held.Renew(t.Context()))
	_, err = Txn(t.Context(), held).Then(clientv3.OpPut(opts.Prefix+"/effect", "x")).Commit()
	require.NoError(t, err)
	require.NoError(t, held.Release(t.Context()))
	g, err := waits.Wait(t.Context())
	require.NoError(t, err)
	assert.Greater(t, g.Token, floor, "the turn came after the floor was raised")
	rec, err = b.Inspect(t.Context(), "held")
	require.NoError(t, err)
	assert.Equal(t, g.Token, rec.Token)
	require.NoError(t, a.ForceRelease(t.Context(), "held", g.Token), "by the token that it was granted with")
}

// One write is enough for all who raise the floor at once: if each needed its own, those who
// meet many others would not be done in time.
func TestFloorIsRaisedOnceForMany(t *testing.T) {
	t.Parallel()
	c, opts := apart(t)
	at := []*etcdBackend{backendOn(t, c, opts), backendOn(t, c, opts), backendOn(t, c, opts)}
	last := once(t, at[0], "k", false)
	version := func() int64 {
		resp, err := c.Get(t.Context(), floorName(at[0].prefix))
		require.NoError(t, err)
		return resp.Kvs[0].Version
	}
	before, above := version(), last+1_000_000
	var all sync.WaitGroup
	for i := range 30 {
		all.Go(func() { assert.NoError(t, at[i%len(at)].RaiseFloor(t.Context(), above-uint64(i%2))) })
	}
	all.Wait()
	assert.LessOrEqual(t, version()-before, int64(2), "one for each of the two floors")
	assert.Greater(t, once(t, at[1], "k", false), above)
}

func TestTokensRiseThroughAQueue(t *testing.T) {
	t.Parallel()
	c, opts := apart(t)
	backendtest.TokensRiseThroughAQueue(t, request("k"), func() backend.Backend { return backendOn(t, c, opts) })
}

// Whoever deletes the floor, with all else or alone, sets no token back.
func TestFloorThatWasDeleted(t *testing.T) {
	t.Parallel()
	c, opts := apart(t)
	a, b := backendOn(t, c, opts), backendOn(t, c, opts)
	last := max(once(t, a, "k", false), once(t, b, "k", false))
	_, err := c.Delete(t.Context(), floorName(a.prefix))
	require.NoError(t, err)
	for _, next := range []*etcdBackend{a, b, backendOn(t, c, opts)} {
		token := once(t, next, "k", false)
		assert.Greater(t, token, last)
		last = token
	}
}

func TestFloorThatIsNone(t *testing.T) {
	t.Parallel()
	c, opts := apart(t)
	b := backendOn(t, c, opts)
	require.ErrorIs(t, b.RaiseFloor(t.Context(), 1<<60), backend.ErrInvalid)
	for _, value := range []string{"", "high", "-1", strings.Repeat("9", 19)} {
		_, err := c.Put(t.Context(), floorName(b.prefix), value)
		require.NoError(t, err)
		_, err = b.Try(t.Context(), request("k"))
		require.ErrorIs(t, err, backend.ErrPermanent)
		assert.ErrorContains(t, err, "another prefix")
		_, err = NewBackend(t.Context(), c, opts)
		require.ErrorIs(t, err, backend.ErrPermanent, "who comes later finds it out at the opening")
		assert.ErrorContains(t, err, "another prefix")
	}
}
