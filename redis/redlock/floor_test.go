package redlock

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

// once is the token of a grant that is released again.
func once(t *testing.T, b backend.Backend, key string) uint64 {
	t.Helper()
	return backendtest.TokenOf(t, b, redistest.Request(key), false)
}

// TestFloorOfEveryNode: after it was raised every majority asks for more, also one with a
// node that has lost it. What is held keeps its token, and is named by it.
func TestFloorOfEveryNode(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 3)
	opts := unhurried(Options{Lock: lock.Options{TTL: ttl}})
	a := backendOn(t, servers, opts).(majorityWithTokens)
	b := backendOn(t, servers, opts).(majorityWithTokens)
	last, err := a.LastToken(t.Context())
	require.NoError(t, err)
	assert.Zero(t, last)
	once(t, b, "k")
	held, granted := backendtest.Granted(t, b, redistest.Request("held"))
	held.Token = granted.Token
	last, err = a.LastToken(t.Context())
	require.NoError(t, err)
	assert.GreaterOrEqual(t, last, granted.Token)

	above := uint64(time.Now().Add(time.Hour).UnixMicro())
	require.NoError(t, a.RaiseFloor(t.Context(), above))
	last, err = b.LastToken(t.Context())
	require.NoError(t, err)
	assert.Equal(t, above, last)
	for _, s := range []backend.Backend{a, b, backendOn(t, servers, opts)} {
		for n := range 5 {
			require.Greater(t, once(t, s, "k"), above)
			require.Greater(t, once(t, s, fmt.Sprint("new ", n)), above)
		}
	}
	require.NoError(t, a.RaiseFloor(t.Context(), above-1), "it is as high already")
	require.Greater(t, once(t, b, "another"), above)

	rec, err := a.Inspect(t.Context(), "held")
	require.NoError(t, err)
	assert.Equal(t, granted.Token, rec.Token)
	_, err = b.Renew(t.Context(), held)
	require.NoError(t, err)
	require.NoError(t, a.Revoke(t.Context(), "held", granted.Token))
	require.NoError(t, a.ForceRelease(t.Context(), "held", granted.Token))
	require.Greater(t, once(t, b, "held"), above)

	require.ErrorIs(t, a.RaiseFloor(t.Context(), largestToken), backend.ErrInvalid)
	require.NoError(t, redistest.Client(t, servers[0]).Del(t.Context(), a.floor()).Err())
	servers[1].Kill(t)
	for n := range 5 {
		require.Greater(t, once(t, b, fmt.Sprint("newer ", n)), above)
	}
	last, err = b.LastToken(t.Context())
	require.NoError(t, err, "a majority is enough for a look")
	assert.Greater(t, last, above)

	higher := above + uint64(time.Hour.Microseconds())
	err = a.RaiseFloor(t.Context(), higher)
	require.ErrorIs(t, err, backend.ErrUnavailable, "a majority of the others might not know")
	assert.ErrorContains(t, err, "2 of 3")
	servers[1].Restart(t, false)
	backendtest.Eventually(t, "all nodes are raised", func() bool { return a.RaiseFloor(t.Context(), higher) == nil })
	require.Greater(t, once(t, b, "k"), higher)
	require.NoError(t, a.RaiseFloor(t.Context(), largestToken-1))
	assert.EqualValues(t, largestToken, once(t, b, "k"), "there is one left")
}

// TestLastTokenOfAKeyAheadOfTheClock: a token that was larger than the clocks is found after
// the key was released.
func TestLastTokenOfAKeyAheadOfTheClock(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 3)
	b := backendOn(t, servers, unhurried(Options{Lock: lock.Options{TTL: ttl}})).(majorityWithTokens)
	ahead := uint64(time.Now().Add(time.Hour).UnixMicro())
	for _, s := range servers {
		require.NoError(t, redistest.Client(t, s).Set(t.Context(), b.accepted("k"), fmt.Sprintf("%d|%s", ahead, backend.NewID().Hex()), 0).Err())
	}
	token := once(t, b, "k")
	require.Greater(t, token, ahead)
	for n := range 10 {
		once(t, b, fmt.Sprint("other ", n))
	}
	last, err := b.LastToken(t.Context())
	require.NoError(t, err)
	assert.Equal(t, token, last)
}

// TestFloorThatIsNone is named, and left as it is.
func TestFloorThatIsNone(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 1)
	c := redistest.Client(t, servers[0])
	b := backendOn(t, servers, unhurried(Options{Lock: lock.Options{TTL: ttl}})).(majorityWithTokens)
	for _, write := range []func() error{
		func() error { return c.Set(t.Context(), b.floor(), "high", 0).Err() },
		func() error { return c.LPush(t.Context(), b.floor(), "x").Err() },
	} {
		require.NoError(t, c.Del(t.Context(), b.floor()).Err())
		require.NoError(t, write())
		_, err := b.Try(t.Context(), redistest.Request("k"))
		require.ErrorIs(t, err, backend.ErrPermanent)
		assert.ErrorContains(t, err, b.floor())
		require.ErrorIs(t, b.RaiseFloor(t.Context(), 1000), backend.ErrPermanent)
		_, err = b.LastToken(t.Context())
		require.ErrorIs(t, err, backend.ErrPermanent)
		assert.ErrorContains(t, err, b.floor())
	}
}
