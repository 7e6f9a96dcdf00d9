package faultlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
)

// signals counts what comes through a watch, and whether it broke.
type signals struct {
	n      atomic.Int32
	broken atomic.Bool
}

func (x *bench) signals(ctx context.Context, key string) *signals {
	x.t.Helper()
	hints, err := x.b.(backend.Watcher).Watch(ctx, key)
	require.NoError(x.t, err)
	s := &signals{}
	go func() {
		for {
			select {
			case _, ok := <-hints:
				if !ok {
					s.broken.Store(true)
					return
				}
				s.n.Add(1)
			case <-ctx.Done():
				return
			}
		}
	}()
	return s
}

// freed has the key released behind the faults, and waits for what follows.
func (x *bench) freed(key string) {
	x.t.Helper()
	h := x.mustTry(key)
	require.NoError(x.t, x.direct.Release(x.t.Context(), h))
	synctest.Wait()
}

func TestHintFaults(t *testing.T) {
	inBubble(t, false, nil, func(t *testing.T, x *bench) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := x.signals(ctx, "k")
		x.freed("k")
		assert.EqualValues(t, 1, s.n.Load(), "no fault")
		for _, lost := range []faultlock.Fault{faultlock.FailBefore(), faultlock.Drop()} {
			x.faults.Next(1, lost, faultlock.OpHint)
			x.freed("k")
			assert.EqualValues(t, 1, s.n.Load(), "lost")
		}
		x.faults.Next(1, faultlock.Duplicate(), faultlock.OpHint)
		x.freed("k")
		assert.EqualValues(t, 3, s.n.Load(), "twice")
		x.faults.Next(1, faultlock.DelayBefore(time.Second), faultlock.OpHint)
		x.freed("k")
		assert.EqualValues(t, 3, s.n.Load(), "not yet")
		time.Sleep(time.Second)
		synctest.Wait()
		assert.EqualValues(t, 4, s.n.Load(), "late")
		x.faults.All(faultlock.HangBefore(), faultlock.OpHint)
		x.freed("k")
		time.Sleep(time.Hour)
		assert.EqualValues(t, 4, s.n.Load(), "hanging")
		x.faults.Heal()
		synctest.Wait()
		assert.EqualValues(t, 5, s.n.Load(), "healed")
		x.faults.Next(1, faultlock.FailAfter(), faultlock.OpHint)
		x.freed("k")
		assert.EqualValues(t, 6, s.n.Load(), "delivered")
		assert.True(t, s.broken.Load())
	})
}

func TestWatchFaults(t *testing.T) {
	inBubble(t, false, nil, func(t *testing.T, x *bench) {
		w := x.b.(backend.Watcher)
		for _, fault := range []faultlock.Fault{faultlock.FailBefore(), faultlock.Drop(), faultlock.FailAfter(), faultlock.ApplyLate(time.Second)} {
			x.faults.Next(1, fault, faultlock.OpWatch)
			_, err := w.Watch(t.Context(), "k")
			require.ErrorIs(t, err, faultlock.ErrInjected)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			require.Equal(t, 0, x.store.Len(), "a watch was left behind by %s", fault)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		x.faults.Next(1, faultlock.HangAfter(), faultlock.OpWatch)
		_, err := w.Watch(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		synctest.Wait()
		require.Equal(t, 0, x.store.Len())

		x.faults.Next(1, faultlock.DelayBefore(time.Second).IgnoringContext(), faultlock.OpWatch)
		ctx, cancel = context.WithCancel(t.Context())
		defer cancel()
		s := x.signals(ctx, "k")
		x.freed("k")
		assert.EqualValues(t, 1, s.n.Load(), "the watch goes on after the delay")
	})
}

func TestWatchEndsWithItsContext(t *testing.T) {
	inBubble(t, false, nil, func(t *testing.T, x *bench) {
		ctx, cancel := context.WithCancel(t.Context())
		s := x.signals(ctx, "k")
		cancel()
		synctest.Wait()
		assert.False(t, s.broken.Load(), "a watch that was given up did not break")
		assert.Equal(t, 0, x.store.Len())
		assert.Equal(t, 0, x.faults.BreakWatches())
	})
}

func TestBreakWatches(t *testing.T) {
	inBubble(t, false, nil, func(t *testing.T, x *bench) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a, b := x.signals(ctx, "a"), x.signals(ctx, "b")
		x.faults.All(faultlock.HangBefore(), faultlock.OpHint)
		x.freed("b") // whose signal hangs when the watch breaks
		assert.Equal(t, 2, x.faults.BreakWatches())
		synctest.Wait()
		assert.True(t, a.broken.Load())
		assert.True(t, b.broken.Load())
		assert.Equal(t, 0, x.store.Len())
		c := x.signals(ctx, "c")
		synctest.Wait()
		assert.False(t, c.broken.Load())
	})
}
