package redislock

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

func TestHandOver(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	key := backendtest.UniqueKey(t)
	from, to := redistest.Request(key), redistest.Request(key)
	first, err := b.Try(t.Context(), from)
	require.NoError(t, err)
	second, err := b.HandOver(t.Context(), backend.HoldOf(from), to)
	require.NoError(t, err)
	assert.Greater(t, second.Token, first.Token)
	assert.Equal(t, 1, second.Holds)

	again, err := b.HandOver(t.Context(), backend.HoldOf(from), to)
	require.NoError(t, err, "a repeat whose first reply was lost")
	assert.Equal(t, second.Token, again.Token)

	require.ErrorIs(t, b.Release(t.Context(), backend.HoldOf(from)), backend.ErrNotHeld)
	_, err = b.HandOver(t.Context(), backend.HoldOf(from), redistest.Request(key))
	require.ErrorIs(t, err, backend.ErrNotHeld)
	_, err = b.Renew(t.Context(), backend.HoldOf(to))
	require.NoError(t, err)
	require.NoError(t, b.Release(t.Context(), backend.HoldOf(to)))
	_, err = b.HandOver(t.Context(), backend.HoldOf(to), from)
	require.ErrorIs(t, err, backend.ErrNotHeld)
	require.Zero(t, c.Exists(t.Context(), namesOf(defaultPrefix, key).record()).Val())
}

func TestHandOverOfOneOfSeveralHolds(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	key := backendtest.UniqueKey(t)
	one, two := ownedRequest(key, "me", ttl), ownedRequest(key, "me", ttl)
	for _, req := range []backend.Request{one, two} {
		_, err := b.Try(t.Context(), req)
		require.NoError(t, err)
	}
	name := namesOf(defaultPrefix, key).record()
	before := c.Get(t.Context(), name).Val()
	_, err := b.HandOver(t.Context(), backend.HoldOf(one), redistest.Request(key))
	require.ErrorIs(t, err, backend.ErrUnsupported)
	assert.Equal(t, before, c.Get(t.Context(), name).Val())

	require.NoError(t, c.Set(t.Context(), name, "somebody else's", 0).Err())
	_, err = b.HandOver(t.Context(), backend.HoldOf(one), redistest.Request(key))
	require.ErrorIs(t, err, backend.ErrPermanent)
	assert.Equal(t, "somebody else's", c.GetDel(t.Context(), name).Val())
}
