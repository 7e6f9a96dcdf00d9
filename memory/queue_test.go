package memlock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	memlock "github.com/mortiselock/lock/memory"
)

func queued(t *testing.T) (backend.Backend, func(key string, id backend.ID) backend.Ticket) {
	b, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: memlock.NewStore(nil), Queue: true})
	require.NoError(t, err)
	q, ok := backend.As[backend.Queuer](b)
	require.True(t, ok)
	return b, func(key string, id backend.ID) backend.Ticket {
		ticket, err := q.Enqueue(t.Context(), backend.Request{Key: key, ID: id, TTL: time.Minute})
		require.NoError(t, err)
		return ticket
	}
}

// A place that was granted and then revoked is that of nobody: its client neither gets it nor
// gives the key back.
func TestRevokedPlaceOfAQueue(t *testing.T) {
	t.Parallel()
	b, enqueue := queued(t)
	ticket := enqueue("k", backend.NewID())
	inspector, _ := backend.As[backend.Inspector](b)
	rec, err := inspector.Inspect(t.Context(), "k")
	require.NoError(t, err)
	revoker, _ := backend.As[backend.Revoker](b)
	require.NoError(t, revoker.Revoke(t.Context(), "k", rec.Token))
	_, err = ticket.Wait(t.Context())
	require.ErrorIs(t, err, backend.ErrLost)
	require.NoError(t, ticket.Withdraw(t.Context()))
	after, err := inspector.Inspect(t.Context(), "k")
	require.NoError(t, err, "the record keeps others out until its expiry")
	assert.True(t, after.Revoked)
	assert.LessOrEqual(t, after.Remaining, rec.Remaining)
}

// A request that is repeated takes one place.
func TestRepeatedPlaceOfAQueue(t *testing.T) {
	t.Parallel()
	b, enqueue := queued(t)
	hold := enqueue("k", backend.NewID())
	id := backend.NewID()
	enqueue("k", id)
	again := enqueue("k", id)
	require.NoError(t, again.Withdraw(t.Context()))
	require.NoError(t, hold.Withdraw(t.Context()))
	inspector, _ := backend.As[backend.Inspector](b)
	_, err := inspector.Inspect(t.Context(), "k")
	require.ErrorIs(t, err, backend.ErrNotHeld)
}
