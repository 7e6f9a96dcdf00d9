//go:build unix

package filelock

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
)

// A clean-up removes what dead holders have left, and neither a hold, nor what is young, nor
// a file of others. A key that comes back has a larger token.
func TestCleanup(t *testing.T) {
	t.Parallel()
	var boot fakeBoot
	b := newBackend(t, t.TempDir())
	boot.set(b)
	leave := func(key string, ttl time.Duration) backend.Grant {
		r := request("", ttl)
		r.Key = key
		g, _ := mustTry(t, b, r)
		return g
	}
	before := leave("old", time.Second)
	leave("young", time.Second)
	leave("held", time.Hour)
	leave("foreign", time.Second)
	require.NoError(t, os.WriteFile(b.placeOf("foreign").record(), []byte(`{"key":"foreign"}`), 0o600))
	boot.pass(2 * time.Second)
	long := time.Now().Add(-48 * time.Hour)
	for _, key := range []string{"old", "held", "foreign"} {
		require.NoError(t, os.Chtimes(b.placeOf(key).record(), long, long))
	}

	for range 2 {
		n, err := b.Cleanup(t.Context(), 24*time.Hour, true)
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	n, err := b.Cleanup(t.Context(), 24*time.Hour, false)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoFileExists(t, b.placeOf("old").record())
	for _, key := range []string{"young", "held", "foreign"} {
		require.FileExists(t, b.placeOf(key).record())
	}
	require.Greater(t, leave("old", time.Second).Token, before.Token)
	_, err = b.Cleanup(t.Context(), 0, false)
	require.ErrorIs(t, err, backend.ErrInvalid)
}
