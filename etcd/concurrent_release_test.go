package etcdlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

// TestReleasesAtOnceSpareTheNextHold: while a request that deletes the key of an
// acquisition is under way, nobody else gets its name, though another such request
// has been answered.
func TestReleasesAtOnceSpareTheNextHold(t *testing.T) {
	t.Parallel()
	b, err := adminOf(servertest.SharedEtcd(t).URL())
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() })
	key := "releases-at-once/" + backend.NewID().Hex()
	taken := func() (backend.Request, *acquisition) {
		req := backend.Request{Key: key, ID: backend.NewID(), TTL: 30 * time.Second, Renewed: true}
		_, err := b.Try(t.Context(), req)
		require.NoError(t, err)
		return req, b.acquisition(req.ID, key)
	}
	req, m := taken()
	slow, still := b.deletes(req.ID, m)
	require.True(t, still)
	require.NoError(t, b.Release(t.Context(), backend.HoldOf(req)))
	_, still = b.deletes(req.ID, m)
	require.False(t, still, "a released acquisition is released once more")
	next, n := taken()
	require.NotEqual(t, m.slot.name, n.slot.name, "a slow release of the last hold would end this one")
	slow()
	require.NoError(t, b.Release(t.Context(), backend.HoldOf(next)))
}
