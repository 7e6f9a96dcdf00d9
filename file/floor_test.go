//go:build unix

package filelock

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
)

func once(t *testing.T, b *files, key string) uint64 {
	t.Helper()
	return backendtest.TokenOf(t, b, backend.Request{Key: key, ID: backend.NewID(), TTL: time.Minute}, false)
}

// Every shard counts on from a floor, for clients that were opened before, too.
func TestFloorOfEveryShard(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b := newBackend(t, dir), newBackend(t, dir)
	held, hold := mustTry(t, b, request("", time.Minute))
	above := uint64(time.Now().Add(time.Hour).UnixMicro())
	require.NoError(t, a.RaiseFloor(t.Context(), above))
	last, err := b.LastToken(t.Context())
	require.NoError(t, err)
	assert.Equal(t, above, last)
	seen := map[byte]bool{}
	for n := 0; len(seen) < shards; n++ {
		key := fmt.Sprint("k", n)
		if shard := b.placeOf(key).shard; !seen[shard] {
			seen[shard] = true
			require.Greater(t, once(t, b, key), above, key)
		}
	}
	require.NoError(t, a.RaiseFloor(t.Context(), above-1), "it is as high already")
	require.Greater(t, once(t, b, "k0"), above+1)

	rec, err := a.Inspect(t.Context(), "key")
	require.NoError(t, err)
	assert.Equal(t, held.Token, rec.Token)
	_, err = b.Renew(t.Context(), hold)
	require.NoError(t, err)
	require.NoError(t, b.Release(t.Context(), hold))
	require.Greater(t, once(t, a, "key"), above)

	require.ErrorIs(t, a.RaiseFloor(t.Context(), maxToken), backend.ErrInvalid)
	require.NoError(t, a.RaiseFloor(t.Context(), maxToken-1))
	assert.EqualValues(t, maxToken, once(t, b, "k0"), "there is one left")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, a.RaiseFloor(ended, 1), context.Canceled)
}

// The largest token is found in the counter of a key that nobody holds, and in the record of
// one whose counter was removed.
func TestLastTokenIsThatOfCountersAndRecords(t *testing.T) {
	t.Parallel()
	b := newBackend(t, t.TempDir())
	lastIs := func(token uint64) {
		t.Helper()
		last, err := b.LastToken(t.Context())
		require.NoError(t, err)
		require.Equal(t, token, last)
	}
	lastIs(0)
	_, err := os.Stat(b.dir + "/" + tokenDir)
	require.ErrorIs(t, err, os.ErrNotExist, "it makes no directory")
	ahead := uint64(time.Now().Add(time.Hour).UnixMicro())
	require.NoError(t, b.raise(t.Context(), b.placeOf("key"), ahead))
	require.Equal(t, ahead+1, once(t, b, "key"))
	lastIs(ahead + 1)
	once(t, b, "another")
	lastIs(ahead + 1)
	_, hold := mustTry(t, b, request("", time.Minute))
	require.NoError(t, os.Remove(b.placeOf("key").token))
	lastIs(ahead + 2)
	require.NoError(t, b.Release(t.Context(), hold))
}

// A counter that somebody has damaged is written anew, with the floor.
func TestFloorOfADamagedCounter(t *testing.T) {
	t.Parallel()
	b := newBackend(t, t.TempDir())
	once(t, b, "key")
	require.NoError(t, os.WriteFile(b.placeOf("key").token, []byte("not a counter, and longer than one slot of it"), 0o600))
	above := uint64(time.Now().Add(time.Hour).UnixMicro())
	require.NoError(t, b.RaiseFloor(t.Context(), above))
	require.Equal(t, above+1, once(t, b, "key"))
}
