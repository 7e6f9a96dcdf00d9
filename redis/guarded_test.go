package redislock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	memlock "github.com/mortiselock/lock/backend/memory"
	"github.com/mortiselock/lock/internal/servertest"
)

func TestGuardedScript(t *testing.T) {
	t.Parallel()
	client := clientOf(t, servertest.SharedRedis(t))
	l, err := New(t.Context(), client, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	key := uniqueKey(t)
	lease, err := l.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	name, err := GuardedKey(lease, "value")
	require.NoError(t, err)

	add := NewGuardedScript("local n = redis.call('INCRBY', KEYS[1], ARGV[1])\nreturn {n, #KEYS, #ARGV, KEYS[2]}")
	for want := int64(3); want <= 6; want += 3 {
		got, err := add.Run(t.Context(), lease, []string{name, name + "2"}, 3)
		require.NoError(t, err)
		assert.Equal(t, []any{want, int64(2), int64(1), name + "2"}, got)
	}

	// Another owner's hold on the same key is not ours.
	require.NoError(t, client.Del(t.Context(), namesOf(defaultPrefix, key).record()).Err())
	_, err = add.Run(t.Context(), lease, []string{name}, 3)
	require.ErrorIs(t, err, lock.ErrNotHeld)
	other, err := l.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	_, err = add.Run(t.Context(), lease, []string{name}, 3)
	require.ErrorIs(t, err, lock.ErrNotHeld)
	got, err := add.Run(t.Context(), other, []string{name}, 3)
	require.NoError(t, err)
	assert.Equal(t, int64(9), got.([]any)[0], "a guarded write without a hold took effect")

	// What the script itself says.
	nothing, err := NewGuardedScript("return false").Run(t.Context(), other, nil)
	require.NoError(t, err)
	assert.Nil(t, nothing)
	_, err = NewGuardedScript("return redis.error_reply('OURS refused')").Run(t.Context(), other, nil)
	require.ErrorContains(t, err, "OURS refused")
	require.NotErrorIs(t, err, lock.ErrNotHeld)
	require.NotErrorIs(t, err, lock.ErrOutcomeUnknown)
	require.NoError(t, client.ScriptFlush(t.Context()).Err())
	_, err = GuardedSet.Run(t.Context(), other, []string{name}, "x")
	require.NoError(t, err)
	require.NoError(t, other.Release(t.Context()))
	_, err = GuardedSet.Run(t.Context(), other, []string{name}, "y")
	require.ErrorIs(t, err, lock.ErrNotHeld)
	assert.Equal(t, "x", client.Get(t.Context(), name).Val())
}

func TestGuardedScriptOfAnotherBackend(t *testing.T) {
	t.Parallel()
	l, err := memlock.New(t.Context(), &memlock.Options{Store: memlock.NewStore(backend.RuntimeClock())})
	require.NoError(t, err)
	defer l.Close()
	lease, err := l.TryAcquire(t.Context(), "k", lock.WithTTL(time.Minute))
	require.NoError(t, err)
	_, err = GuardedSet.Run(t.Context(), lease, []string{"x"}, "y")
	require.ErrorIs(t, err, lock.ErrUnsupported)
	_, err = GuardedKey(lease, "x")
	require.ErrorIs(t, err, lock.ErrUnsupported)
	_, err = GuardedSet.Run(t.Context(), nil, nil)
	require.ErrorIs(t, err, lock.ErrInvalid)
}
