//go:build unix

package filelock

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestReleaseKnowsOfWaiters: also after the file of waiters was removed, and never of
// those who have ended.
func TestReleaseKnowsOfWaiters(t *testing.T) {
	t.Parallel()
	if !knowsWaiters {
		t.Skip("no locks of bytes that belong to an open file")
	}
	dir := t.TempDir()
	b1, b2 := newBackend(t, dir), newBackend(t, dir)
	told := func() int {
		t.Helper()
		_, h := mustTry(t, b1, request("", time.Hour))
		others, err := b1.ReleaseTelling(t.Context(), h)
		require.NoError(t, err)
		return others
	}
	require.Equal(t, 0, told())
	first, end := context.WithCancel(t.Context())
	second, endSecond := context.WithCancel(t.Context())
	defer endSecond()
	for _, ctx := range []context.Context{first, second} {
		_, err := b2.Watch(ctx, "key")
		require.NoError(t, err)
	}
	_, err := b2.Watch(t.Context(), "another key")
	require.NoError(t, err)
	require.Equal(t, 1, told())
	end()
	require.Eventually(t, func() bool {
		b2.waiters.mu.Lock()
		defer b2.waiters.mu.Unlock()
		return b2.waiters.bytes[b2.placeOf("key").waiter] == 1
	}, patience, time.Millisecond)
	require.Equal(t, 1, told(), "one watch is left")

	require.NoError(t, os.Remove(filepath.Join(dir, waitersFile)))
	require.Equal(t, 0, told(), "a new file, which the other one does not know yet")
	_, err = b2.Watch(second, "yet another key")
	require.NoError(t, err)
	require.Equal(t, 1, told(), "the older watch is known there, too")
	require.NoError(t, b2.Close())
	require.Equal(t, 0, told())
}
