package zklock

import (
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
)

// apart is a key space of the test's own.
func apart(t testing.TB) (open func() *zkBackend, root string) {
	t.Helper()
	opts := Options{Prefix: "floor-" + backendtest.UniqueKey(t)}
	return func() *zkBackend {
		own := opts
		return backendOn(t, &own, servertest.SharedZooKeeper(t))
	}, "/" + opts.Prefix
}

// once is the token of a grant that is released again.
func once(t testing.TB, b *zkBackend, key string, queue bool) uint64 {
	t.Helper()
	return backendtest.TokenOf(t, b, request(key), queue)
}

// An ensemble that was never used before follows on any store that counts from the clock.
func TestTokensBeginAtTheClock(t *testing.T) {
	t.Parallel()
	open, _ := apart(t)
	before := uint64(time.Now().UnixMicro())
	a, b := open(), open()
	for _, queue := range []bool{false, true} {
		last := once(t, a, "k", queue)
		assert.Greater(t, last, before)
		assert.Greater(t, once(t, b, "k", queue), last, "another client counts on from the same floor")
	}
}

// However many clients come first, they agree on one floor.
func TestFirstClientsAgree(t *testing.T) {
	t.Parallel()
	open, root := apart(t)
	floors := make(chan floor, 6)
	for range cap(floors) {
		b := open()
		go func() {
			f, err := b.current.knownFloor(t.Context())
			assert.NoError(t, err)
			floors <- f
		}()
	}
	one := <-floors
	for range cap(floors) - 1 {
		assert.Equal(t, one, <-floors)
	}
	children, _, err := rawOn(t, servertest.SharedZooKeeper(t)).Children(root + "/%floor")
	require.NoError(t, err)
	assert.Len(t, children, 1)
}

// A floor that is raised counts for clients that were opened before, and for those who wait
// already; what is held keeps its token, in every view.
func TestFloorIsRaisedForEverybody(t *testing.T) {
	t.Parallel()
	open, _ := apart(t)
	a, b := open(), open()
	held, g := backendtest.Granted(t, a, request("held"))
	waits, err := b.Enqueue(t.Context(), request("held"))
	require.NoError(t, err)
	once(t, a, "k", false)
	once(t, b, "k", false)

	above := uint64(time.Now().Add(time.Hour).UnixMicro())
	require.NoError(t, a.RaiseFloor(t.Context(), above))
	assert.Greater(t, once(t, b, "k", false), above, "by a try")
	assert.Greater(t, once(t, b, "other", true), above, "by a place in the queue")
	require.NoError(t, b.RaiseFloor(t.Context(), above-1), "it is as high already")
	assert.Greater(t, once(t, a, "k", false), above)

	rec, err := b.Inspect(t.Context(), "held")
	require.NoError(t, err)
	assert.Equal(t, g.Token, rec.Token)
	_, err = a.Renew(t.Context(), held)
	require.NoError(t, err)
	require.NoError(t, a.Release(t.Context(), held))
	next, err := waits.Wait(t.Context())
	require.NoError(t, err)
	assert.Greater(t, next.Token, above, "the turn came after the floor was raised")
	rec, err = b.Inspect(t.Context(), "held")
	require.NoError(t, err)
	assert.Equal(t, next.Token, rec.Token)
	assert.False(t, rec.Revoked)
	require.NoError(t, a.ForceRelease(t.Context(), "held", next.Token), "by the token that it was granted with")
}

func TestTokensRiseThroughAQueue(t *testing.T) {
	t.Parallel()
	open, _ := apart(t)
	backendtest.TokensRiseThroughAQueue(t, request("k"), func() backend.Backend { return open() })
}

// A hold whose token was settled in the queue is revoked as any other, and renewed and
// guarded before.
func TestSettledHoldIsRevoked(t *testing.T) {
	t.Parallel()
	open, _ := apart(t)
	a, b := open(), open()
	held, _ := backendtest.Granted(t, a, request("k"))
	req := request("k")
	waits, err := b.Enqueue(t.Context(), req)
	require.NoError(t, err)
	require.NoError(t, a.RaiseFloor(t.Context(), uint64(time.Now().Add(time.Hour).UnixMicro())))
	require.NoError(t, a.Release(t.Context(), held))
	g, err := waits.Wait(t.Context())
	require.NoError(t, err)
	hold := backend.HoldOf(req)
	hold.Token = g.Token
	_, err = b.Renew(t.Context(), hold)
	require.NoError(t, err)
	require.NoError(t, a.Revoke(t.Context(), "k", g.Token))
	rec, err := a.Inspect(t.Context(), "k")
	require.NoError(t, err)
	assert.True(t, rec.Revoked)
	_, err = b.Renew(t.Context(), hold)
	require.ErrorIs(t, err, backend.ErrTakenOver)
}

// Whoever deletes the floor, with all else or alone, sets no token back.
func TestFloorThatWasDeleted(t *testing.T) {
	t.Parallel()
	open, root := apart(t)
	a, b := open(), open()
	last := max(once(t, a, "k", false), once(t, b, "k", false))
	conn := rawOn(t, servertest.SharedZooKeeper(t))
	dir := root + "/%floor"
	children, _, err := conn.Children(dir)
	require.NoError(t, err)
	require.NoError(t, conn.Delete(dir+"/"+children[0], -1))
	require.NoError(t, conn.Delete(dir, -1))
	for _, next := range []*zkBackend{a, b, open()} {
		token := once(t, next, "k", false)
		assert.Greater(t, token, last)
		last = token
	}
}

func TestFloorThatIsNone(t *testing.T) {
	t.Parallel()
	open, root := apart(t)
	b := open()
	require.ErrorIs(t, b.RaiseFloor(t.Context(), 1<<60), backend.ErrInvalid)
	require.NoError(t, b.current.makeFloorDir(t.Context()))
	_, err := rawOn(t, servertest.SharedZooKeeper(t)).Create(root+"/%floor/high", nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	_, err = b.Try(t.Context(), request("k"))
	require.ErrorIs(t, err, backend.ErrPermanent)
	assert.ErrorContains(t, err, "another prefix")
	_, err = NewBackend(t.Context(), []string{servertest.SharedZooKeeper(t).Addr()}, &Options{Prefix: root[1:]})
	require.ErrorIs(t, err, backend.ErrPermanent, "who comes later finds it out at the opening")
	assert.ErrorContains(t, err, "another prefix")
}
