package redlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

// A renewal that overtakes a release on its way to the nodes finds the key free where the
// release has been, and must not put the hold back there: it would stay for its TTL.
func TestNothingIsPutBackBesideARelease(t *testing.T) {
	t.Parallel()
	d := doubleOn(t, doubleClients(t, 5), Options{})
	hold, _ := backendtest.Granted(t, d, redistest.Request("k"))
	sent := d.topUps.end(hold.ID)
	d.releaseAt(0, "k", recordHead+hold.ID.Hex()+"|", d.clock.Now().Add(time.Minute), true)
	_, err := d.Renew(t.Context(), hold)
	require.NoError(t, err, "four of five nodes have the hold")
	d.settle(t.Context())
	assert.Equal(t, 4, d.count(t, "k"), "the hold was put back behind its release")
	sent()
	_, err = d.Renew(t.Context(), hold)
	require.NoError(t, err)
	d.settle(t.Context())
	assert.Equal(t, 5, d.count(t, "k"), "the node that lacks the hold gets it back when nobody releases it")
	require.NoError(t, d.Release(t.Context(), hold))
	d.settle(t.Context())
	assert.Zero(t, d.count(t, "k"))
	assert.Empty(t, d.topUps.m)
	assert.Empty(t, d.topUps.releasing)
}

// Forget removes the tokens of keys that a node still has when it is asked, since it
// was too slow to get their releases in time.
func TestForgetWaitsForASlowNode(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 3)
	b := backendOn(t, servers, unhurried(Options{Lock: lock.Options{TTL: time.Minute}}))
	frozen := redistest.Client(t, servers[2])
	hold, _ := backendtest.Granted(t, b, redistest.Request("f/k"))
	backendtest.Eventually(t, "the third node has the key", func() bool {
		n, err := frozen.Exists(t.Context(), defaultPrefix+"k:f/k").Result()
		return err == nil && n == 1
	})
	servers[2].Freeze(t)
	require.NoError(t, b.Release(t.Context(), hold))
	forgotten := make(chan error, 1)
	go func() { forgotten <- b.(backend.Forgetter).Forget(t.Context(), "f/") }()
	select {
	case err := <-forgotten:
		require.Fail(t, "a node with the key was not waited for", "%v", err)
	case <-time.After(2 * time.Second):
	}
	servers[2].Resume(t)
	require.NoError(t, <-forgotten)
	left, err := frozen.Keys(t.Context(), "*f/*").Result()
	require.NoError(t, err)
	assert.Empty(t, left)
}

// TestForgetWithoutAMinority: Forget does without nodes that are down, as every
// other request does, and says so when too few are left.
func TestForgetWithoutAMinority(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 3)
	b := backendOn(t, servers, unhurried(Options{}))
	hold, _ := backendtest.Granted(t, b, redistest.Request("f/k"))
	require.NoError(t, b.Release(t.Context(), hold))
	servers[2].Kill(t)
	require.NoError(t, b.(backend.Forgetter).Forget(t.Context(), "f/"))
	for _, s := range servers[:2] {
		n, err := redistest.Client(t, s).Exists(t.Context(), defaultPrefix+"t:f/k").Result()
		require.NoError(t, err)
		require.Zero(t, n, "the token is still there")
	}
	servers[1].Kill(t)
	require.ErrorIs(t, b.(backend.Forgetter).Forget(t.Context(), "f/"), backend.ErrUnavailable)
}
