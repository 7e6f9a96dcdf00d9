//go:build unix

package filelock

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
)

const patience = 10 * time.Second

// signalled waits for a signal and reports whether the channel was closed.
func signalled(t *testing.T, ch <-chan backend.Hint) (closed bool) {
	t.Helper()
	select {
	case _, ok := <-ch:
		return !ok
	case <-time.After(patience):
		t.Fatal("no signal")
		return false
	}
}

func (h *hub) idle() bool {
	h.setup.Lock()
	defer h.setup.Unlock()
	return h.watcher == nil
}

func TestWatchSignalsRelease(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b1, b2 := newBackend(t, dir), newBackend(t, dir)
	for i := range 50 {
		_, h := mustTry(t, b1, request("", time.Hour))
		ctx, cancel := context.WithCancel(t.Context())
		ch, err := b2.Watch(ctx, "key")
		require.NoError(t, err)
		other, err := b2.Watch(ctx, "key")
		require.NoError(t, err)
		_, err = b1.Renew(t.Context(), h)
		require.NoError(t, err)
		switch i % 3 {
		case 0:
			require.NoError(t, b1.Release(t.Context(), h))
		case 1:
			require.NoError(t, b1.ForceRelease(t.Context(), "key", h.Token))
		case 2:
			require.NoError(t, os.Remove(b1.placeOf("key").record()))
		}
		require.False(t, signalled(t, ch))
		require.False(t, signalled(t, other))
		cancel()
	}
	require.Eventually(t, b2.hub.idle, patience, time.Millisecond, "nothing is left when nobody watches")
}

func TestWatchOfAKeyThatWasNeverHeld(t *testing.T) {
	t.Parallel()
	b := newBackend(t, t.TempDir())
	ch, err := b.Watch(t.Context(), "key")
	require.NoError(t, err)
	_, h := mustTry(t, b, request("", time.Hour))
	require.True(t, signalled(t, ch), "the directory of its record was missing, and is made")
	ch, err = b.Watch(t.Context(), "key")
	require.NoError(t, err)
	require.NoError(t, b.Release(t.Context(), h))
	require.False(t, signalled(t, ch))
}

// TestWatchOfWhatIsMissing: the watch breaks when the next directory on the way to the
// record is made, and until then nothing is.
func TestWatchOfWhatIsMissing(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	b := newBackend(t, filepath.Join(root, "one", "two"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := b.placeOf("key")
	for _, dir := range []string{filepath.Dir(b.dir), b.dir, filepath.Dir(p.dir), p.dir} {
		ch, err := b.Watch(ctx, "key")
		require.NoError(t, err)
		other, err := b.Watch(ctx, "key")
		require.NoError(t, err)
		require.NoDirExists(t, dir)
		require.NoError(t, os.Mkdir(filepath.Join(filepath.Dir(dir), "unrelated"), 0o700))
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.True(t, signalled(t, ch))
		require.True(t, signalled(t, other))
	}
	ch, err := b.Watch(ctx, "key")
	require.NoError(t, err)
	_, h := mustTry(t, b, request("", time.Hour))
	require.NoError(t, b.Release(t.Context(), h))
	require.False(t, signalled(t, ch))
	cancel()
	require.Eventually(t, b.hub.idle, patience, time.Millisecond)
}

func TestWatchesShareOneWatcher(t *testing.T) {
	t.Parallel()
	b := newBackend(t, t.TempDir())
	for i := range 300 {
		require.NoError(t, os.MkdirAll(b.placeOf(fmt.Sprint(i)).dir, 0o700))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var channels []<-chan backend.Hint
	for i := range 300 {
		ch, err := b.Watch(ctx, fmt.Sprint(i))
		require.NoError(t, err)
		channels = append(channels, ch)
	}
	watcher := b.hub.watcher
	require.LessOrEqual(t, len(watcher.WatchList()), shards)
	for i, ch := range channels {
		r := request("", time.Hour)
		r.Key = fmt.Sprint(i)
		_, h := mustTry(t, b, r)
		require.Empty(t, ch, "a grant is no signal")
		require.NoError(t, b.Release(t.Context(), h))
		require.False(t, signalled(t, ch))
	}
	cancel()
	require.Eventually(t, b.hub.idle, patience, time.Millisecond)
	require.Eventually(t, func() bool { return len(watcher.WatchList()) == 0 }, patience, time.Millisecond, "it is closed")
	require.Empty(t, b.hub.dirs)
}

func TestWatchEndsWithItsDirectory(t *testing.T) {
	t.Parallel()
	b := newBackend(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ch, err := b.Watch(ctx, "key")
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(b.dir))
	for !signalled(t, ch) {
	}
	_, h := mustTry(t, b, request("", time.Hour))
	again, err := b.Watch(ctx, "key")
	require.NoError(t, err)
	require.NoError(t, b.Release(t.Context(), h))
	require.False(t, signalled(t, again))
	cancel()
	require.Eventually(t, b.hub.idle, patience, time.Millisecond)
}

func TestCloseEndsWatches(t *testing.T) {
	t.Parallel()
	b, err := newFiles(t.Context(), t.TempDir(), nil)
	require.NoError(t, err)
	ch, err := b.Watch(t.Context(), "key")
	require.NoError(t, err)
	require.NoError(t, b.Close())
	require.True(t, signalled(t, ch))
	require.NoError(t, b.Close())
	_, err = b.Watch(t.Context(), "key")
	require.ErrorIs(t, err, backend.ErrClosed)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = b.Watch(ctx, "key")
	require.ErrorIs(t, err, context.Canceled)
}

// Watches come and go while records do.
func TestWatchesUnderWay(t *testing.T) {
	t.Parallel()
	b := newBackend(t, t.TempDir())
	done := make(chan error, 8)
	for i := range cap(done) {
		go func() {
			for n := range 100 {
				ctx, cancel := context.WithCancel(context.Background())
				ch, err := b.Watch(ctx, fmt.Sprint(i%3))
				if err != nil {
					cancel()
					done <- err
					return
				}
				r := request("", time.Hour)
				r.Key = fmt.Sprint(i % 3)
				if g, err := b.Try(ctx, r); err == nil {
					h := backend.HoldOf(r)
					h.Token = g.Token
					if err := b.Release(ctx, h); err != nil {
						cancel()
						done <- err
						return
					}
					<-ch // the release itself
				} else if n%2 == 0 {
					select {
					case <-ch:
					case <-time.After(time.Millisecond):
					}
				}
				cancel()
			}
			done <- nil
		}()
	}
	for range cap(done) {
		require.NoError(t, <-done)
	}
	require.Eventually(t, b.hub.idle, patience, time.Millisecond)
}

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
	b3 := newBackend(t, dir)
	b3.waiters.seat = (b2.waiters.seat + 1) % waiterSeats
	_, err = b3.Watch(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, 2, told(), "one of each client")
	require.NoError(t, b3.Close())

	require.NoError(t, os.Remove(filepath.Join(dir, waitersFile)))
	require.Equal(t, 0, told(), "a new file, which the other one does not know yet")
	_, err = b2.Watch(second, "yet another key")
	require.NoError(t, err)
	require.Equal(t, 1, told(), "the older watch is known there, too")
	require.NoError(t, b2.Close())
	require.Equal(t, 0, told())
}

// The kernel may take long to close a watcher. Those who watch next don't wait for it.
func TestClosingAWatcherDelaysNoWatch(t *testing.T) {
	t.Parallel()
	b := newBackend(t, t.TempDir())
	_, hold := mustTry(t, b, request("", time.Hour))
	closing, goOn := make(chan struct{}), make(chan struct{})
	b.hub.shut = func(w *fsnotify.Watcher) error {
		select {
		case closing <- struct{}{}:
			<-goOn
		case <-goOn:
		}
		return w.Close()
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := b.Watch(ctx, "key")
	require.NoError(t, err)
	cancel()
	<-closing
	ch, err := b.Watch(t.Context(), "key")
	require.NoError(t, err)
	require.NoError(t, b.Release(t.Context(), hold))
	require.False(t, signalled(t, ch))
	close(goOn)
}
