package lock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	memlock "github.com/mortiselock/lock/memory"
)

func TestWaitInAQueueIsObserved(t *testing.T) {
	personalities(t, func(t *testing.T, store *memlock.Store, open opener) {
		var waits atomic.Int32
		a := open()
		b := open(func(o *memlock.Options) {
			o.Lock.Observer = func(_ context.Context, e lock.Event) {
				if e.Kind == lock.EventWaitEnded {
					waits.Add(1)
					assert.NoError(t, e.Err)
					assert.GreaterOrEqual(t, e.Duration, time.Minute)
				}
			}
		})
		free, err := b.Acquire(t.Context(), "other")
		require.NoError(t, err)
		first, err := a.Acquire(t.Context(), "k")
		require.NoError(t, err)
		time.AfterFunc(time.Minute, func() { _ = first.Release(context.Background()) })
		second, err := b.Acquire(t.Context(), "k")
		require.NoError(t, err)
		require.NoError(t, second.Release(t.Context()))
		require.NoError(t, free.Release(t.Context()))
		assert.EqualValues(t, 1, waits.Load())
	})
}

// broken is a watch that breaks as soon as it is set up.
type brokenWatch struct {
	backend.Backend
	tries, watches atomic.Int32
}

func (b *brokenWatch) Clock() backend.Clock { return backend.RuntimeClock() }

func (b *brokenWatch) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if b.tries.Add(1) > 10000 {
		return backend.Grant{}, backend.ErrPermanent
	}
	return b.Backend.Try(ctx, req)
}

func (b *brokenWatch) Watch(context.Context, string) (<-chan backend.Hint, error) {
	b.watches.Add(1)
	ch := make(chan backend.Hint)
	close(ch)
	return ch, nil
}

func TestWatchThatBreaksIsNoBusyLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore(nil)
		m, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: store})
		require.NoError(t, err)
		b := &brokenWatch{Backend: m}
		l, err := lock.New(b, nil)
		require.NoError(t, err)
		first, err := l.Acquire(t.Context(), "k")
		require.NoError(t, err)
		time.AfterFunc(10*time.Second, func() { _ = first.Release(context.Background()) })
		start := time.Now()
		second, err := l.Acquire(t.Context(), "k")
		require.NoError(t, err)
		assert.Less(t, time.Since(start), 11*time.Second)
		assert.Less(t, b.tries.Load(), int32(200))
		require.NoError(t, second.Release(t.Context()))
		require.NoError(t, l.Close())
	})
}

func TestLostPlaceInAQueueIsNoLossOfAHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore(nil)
		a, err := memlock.New(t.Context(), &memlock.Options{Store: store, Queue: true})
		require.NoError(t, err)
		b, err := memlock.New(t.Context(), &memlock.Options{Store: store, Queue: true})
		require.NoError(t, err)
		_, err = a.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		time.AfterFunc(time.Second-10*time.Millisecond, store.EndSession)
		_, err = b.Acquire(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, lock.ErrLost)
		require.NotErrorIs(t, err, lock.ErrNotHeld)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}
