package zklock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
)

// TestBatchIsOneRequest: 200 holds are two transactions. What has gone from one of them costs the
// others a request each, and nothing else.
func TestBatchIsOneRequest(t *testing.T) {
	t.Parallel()
	server, b, other, _ := calmPair(t)
	holds := make([]backend.Hold, 200)
	for i := range holds {
		holds[i], _ = backendtest.Granted(t, b, backend.Request{Key: backendtest.UniqueKey(t), ID: backend.NewID(), TTL: longest})
	}
	requests := func() int {
		begun, before := time.Now(), received(t, b, server)
		for i, r := range b.RenewBatch(t.Context(), holds) {
			require.NoError(t, r.Err, "hold %d", i)
			require.Positive(t, r.Validity.For)
		}
		return received(t, b, server) - before - ownRequests(begun)
	}
	assert.LessOrEqual(t, requests(), 2)

	removed, revoked, stranger := 3, 50, 60
	require.NoError(t, b.current.conn.Delete(b.current.find(holds[removed].ID).path, -1))
	require.NoError(t, other.Revoke(t.Context(), holds[revoked].Key, holds[revoked].Token))
	own := holds[stranger]
	holds[stranger] = backend.Hold{Key: own.Key, ID: backend.NewID(), TTL: longest}
	for i, r := range b.RenewBatch(t.Context(), holds) {
		switch i {
		case removed, revoked:
			assert.ErrorIs(t, r.Err, backend.ErrTakenOver, "hold %d", i)
		case stranger:
			assert.ErrorIs(t, r.Err, backend.ErrNotHeld, "hold %d", i)
		default:
			assert.NoError(t, r.Err, "hold %d", i)
		}
	}
	holds[removed], holds[revoked], holds[stranger] = own, holds[0], holds[1]
	assert.LessOrEqual(t, requests(), 2, "what has gone is not asked about again")
}
