package redlock

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

// maxToken is the last number below 2^53.
const maxToken = 1<<53 - 1

// TestTokensRunOut: a majority of nodes whose tokens are used up refuses for
// good, and gives no token again; a minority does not stop the others.
func TestTokensRunOut(t *testing.T) {
	t.Parallel()
	d := doubleOn(t, doubleClients(t, 3), Options{})
	exhaust := func(node int, token uint64) {
		require.NoError(t, d.clients[node].Set(t.Context(), d.accepted("k"), fmt.Sprintf("%d|%s", token, backend.NewID().Hex()), 0).Err())
	}
	exhaust(0, maxToken-1)
	req := redistest.Request("k")
	g, err := d.Try(t.Context(), req)
	require.NoError(t, err)
	require.LessOrEqual(t, g.Token, uint64(maxToken))
	require.NoError(t, d.Release(t.Context(), backend.HoldOf(req)))
	for node := range 2 {
		exhaust(node, maxToken)
	}
	for range 3 {
		_, err = d.Try(t.Context(), redistest.Request("k"))
		require.ErrorIs(t, err, backend.ErrPermanent)
		require.ErrorContains(t, err, "2^53")
	}
	backendtest.Eventually(t, "the key is free on every node", func() bool { return d.count(t, "k") == 0 })
}
