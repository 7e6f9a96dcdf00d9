//go:build unix

package filelock

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

func newLocker(t *testing.T, dir string) *lock.Client {
	t.Helper()
	l, err := New(t.Context(), dir, &Options{Lock: lock.Options{TTL: time.Second}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

func TestLockersHandOver(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var wg sync.WaitGroup
	// Loads and stores of one holder at a time. They are atomic because the race
	// detector does not know that files can order goroutines.
	var n, last atomic.Uint64
	for range 4 {
		l := newLocker(t, dir)
		for range 4 {
			wg.Go(func() {
				for range 10 {
					lease, err := l.Acquire(context.Background(), "key", lock.WithTTL(30*time.Second))
					if err != nil {
						t.Error(err)
						return
					}
					before := n.Load()
					if lease.Token() <= last.Load() {
						t.Errorf("token %d after %d", lease.Token(), last.Load())
					}
					last.Store(lease.Token())
					n.Store(before + 1)
					if err := lease.Release(context.Background()); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	require.EqualValues(t, 4*4*10, n.Load())
}

func TestRemovedRecordIsALoss(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := newLocker(t, dir)
	lease, err := l.Acquire(t.Context(), "key")
	require.NoError(t, err)
	b := newBackend(t, dir)
	require.NoError(t, os.Remove(b.placeOf("key").record()))
	select {
	case <-lease.Context().Done():
	case <-time.After(patience):
		t.Fatal("the loss was not noticed")
	}
	require.ErrorIs(t, context.Cause(lease.Context()), lock.ErrTakenOver)
	require.ErrorIs(t, lease.Release(t.Context()), lock.ErrLost)
}

func TestOpenByURL(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := lock.Open(t.Context(), "file:"+dir, nil)
	require.NoError(t, err)
	lease, err := l.TryAcquire(t.Context(), "key", lock.WithLabel("nightly"))
	require.NoError(t, err)
	other, err := New(t.Context(), dir, nil)
	require.NoError(t, err)
	_, err = other.TryAcquire(t.Context(), "key")
	var held *lock.HeldError
	require.ErrorAs(t, err, &held)
	require.Equal(t, "nightly", held.Holder.Label)
	require.Equal(t, os.Getpid(), held.Holder.PID)
	_, err = other.TryAcquire(t.Context(), "key", lock.WithTTL(time.Millisecond))
	require.ErrorIs(t, err, lock.ErrInvalid)
	require.NoError(t, lease.Release(t.Context()))
	require.Equal(t, backend.ReachHost, l.Guarantees().Reach)
	require.NoError(t, l.Close())
	require.NoError(t, other.Close())

	_, err = lock.Open(t.Context(), "file:"+dir+"?wait=1s", nil)
	require.ErrorIs(t, err, lock.ErrInvalid)
	_, err = New(t.Context(), dir, &Options{Lock: lock.Options{TTL: -1}})
	require.ErrorIs(t, err, lock.ErrInvalid)
}
