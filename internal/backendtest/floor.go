package backendtest

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
)

// TokensRiseThroughAQueue has places that were taken before the floor was raised, and after,
// served in their order. Their tokens rise, and are above the floor. The request is for a free
// key, and each client that is opened is another one.
func TokensRiseThroughAQueue(t *testing.T, of backend.Request, open func() backend.Backend) {
	t.Helper()
	request := func() backend.Request {
		req := of
		req.ID = backend.NewID()
		return req
	}
	a := open()
	raiser, ok := backend.As[backend.FloorRaiser](a)
	require.True(t, ok)
	held, g := Granted(t, a, request())
	last := g.Token
	var queue []backend.Ticket
	enqueue := func() {
		queuer, ok := backend.As[backend.Queuer](open())
		require.True(t, ok)
		place, err := queuer.Enqueue(t.Context(), request())
		require.NoError(t, err)
		queue = append(queue, place)
	}
	raise := func() {
		last += 1 << 30
		require.NoError(t, raiser.RaiseFloor(t.Context(), last))
	}
	for range 2 {
		enqueue()
	}
	raise()
	for range 2 {
		enqueue()
	}
	require.NoError(t, a.Release(t.Context(), held))
	for i, place := range queue {
		g, err := place.Wait(t.Context())
		require.NoError(t, err)
		assert.Greater(t, g.Token, last, "of place %d", i)
		last = g.Token
		if i == 2 {
			raise() // as a pair does when it has been granted
		}
		require.NoError(t, place.Withdraw(t.Context()), "of place %d", i)
	}
	assert.Greater(t, TokenOf(t, a, request(), false), last)
}
