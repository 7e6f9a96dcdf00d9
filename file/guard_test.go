//go:build unix

package filelock

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
)

// Two handles in one process have open file descriptions of their own.
func TestGuardExcludesInOneProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b1, b2 := newBackend(t, dir), newBackend(t, dir)
	p := b1.placeOf("key")
	inside, leave := make(chan struct{}), make(chan struct{})
	done := make(chan error)
	go func() {
		done <- b1.guarded(context.Background(), p, func(*guard) error {
			close(inside)
			<-leave
			return nil
		})
	}()
	<-inside
	for _, b := range []*files{b1, b2} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err := b.guarded(ctx, p, func(*guard) error { return errors.New("inside") })
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	// Another shard is free.
	other := p
	for i := 'a'; other.shard == p.shard; i++ {
		other = b2.placeOf(string(i))
	}
	require.NoError(t, b2.guarded(t.Context(), other, func(*guard) error { return nil }))
	close(leave)
	require.NoError(t, <-done)
	require.NoError(t, b2.guarded(t.Context(), p, func(*guard) error { return nil }))
}

// Somebody removes the guard while an operation is under way: the operation
// changes nothing and starts over with the guard that is there now.
func TestReplacedGuard(t *testing.T) {
	t.Parallel()
	b := newBackend(t, t.TempDir())
	g, h := mustTry(t, b, request("", time.Hour))
	p := b.placeOf("key")
	before := stateOf(t, b, "key")
	runs := 0
	var other *guard
	err := b.guarded(t.Context(), p, func(gd *guard) error {
		runs++
		r, _, err := b.load(p)
		require.NoError(t, err)
		if runs <= 2 {
			require.NoError(t, os.Remove(p.guard))
			if runs == 2 {
				// Another process has locked the successor.
				other, err = b.lock(t.Context(), p, nil)
				require.NoError(t, err)
				defer func() { require.NoError(t, other.lock.Unlock()) }()
			}
			r.Token++
			err := b.save(gd, p, r)
			require.ErrorIs(t, err, errGuardReplaced)
			require.ErrorIs(t, b.remove(gd, p), errGuardReplaced)
			require.Equal(t, before, stateOf(t, b, "key"))
			return err
		}
		return b.save(gd, p, r)
	})
	require.NoError(t, err)
	require.Equal(t, 3, runs)
	rec, err := b.Inspect(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, g.Token, rec.Token)
	require.NoError(t, b.Release(t.Context(), h))
}

// The guards are the same files before and after any operation.
func TestGuardsAreNeverRemoved(t *testing.T) {
	t.Parallel()
	b := newBackend(t, t.TempDir())
	_, h := mustTry(t, b, request("", time.Hour))
	first, err := os.Stat(b.placeOf("key").guard)
	require.NoError(t, err)
	for range 20 {
		_, err := b.Renew(t.Context(), h)
		require.NoError(t, err)
		require.NoError(t, b.Release(t.Context(), h))
		_, h = mustTry(t, b, request("", time.Hour))
		require.NoError(t, b.ForceRelease(t.Context(), "key", h.Token))
		_, h = mustTry(t, b, request("", time.Hour))
	}
	last, err := os.Stat(b.placeOf("key").guard)
	require.NoError(t, err)
	require.True(t, os.SameFile(first, last))
}

func TestConcurrentTriesHaveOneWinner(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b1, b2 := newBackend(t, dir), newBackend(t, dir)
	for range 20 {
		type result struct {
			h   backend.Hold
			err error
		}
		results := make(chan result)
		for i := range 16 {
			b := b1
			if i%2 == 1 {
				b = b2
			}
			go func() {
				r := request("", time.Hour)
				g, err := b.Try(context.Background(), r)
				h := backend.HoldOf(r)
				h.Token = g.Token
				results <- result{h, err}
			}()
		}
		var winners []backend.Hold
		for range 16 {
			if r := <-results; r.err == nil {
				winners = append(winners, r.h)
			} else {
				require.ErrorIs(t, r.err, backend.ErrHeld)
			}
		}
		require.Len(t, winners, 1)
		require.NoError(t, b1.Release(t.Context(), winners[0]))
	}
}
