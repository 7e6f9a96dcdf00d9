package faultlock_test

import (
	"context"
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
	n      int
	broken bool
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
					s.broken = true
					return
				}
				s.n++
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
		assert.Equal(t, 1, s.n, "no fault")
		for _, lost := range []faultlock.Fault{faultlock.FailBefore(), faultlock.Drop()} {
			x.faults.Next(1, lost, faultlock.OpHint)
			x.freed("k")
			assert.Equal(t, 1, s.n, "lost")
		}
		x.faults.Next(1, faultlock.Duplicate(), faultlock.OpHint)
		x.freed("k")
		assert.Equal(t, 3, s.n, "twice")
		x.faults.Next(1, faultlock.DelayBefore(time.Second), faultlock.OpHint)
		x.freed("k")
		assert.Equal(t, 3, s.n, "not yet")
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, 4, s.n, "late")
		x.faults.All(faultlock.HangBefore(), faultlock.OpHint)
		x.freed("k")
		time.Sleep(time.Hour)
		assert.Equal(t, 4, s.n, "hanging")
		x.faults.Heal()
		synctest.Wait()
		assert.Equal(t, 5, s.n, "healed")
		x.faults.Next(1, faultlock.FailAfter(), faultlock.OpHint)
		x.freed("k")
		assert.Equal(t, 6, s.n, "delivered")
		assert.True(t, s.broken)
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
	})
}

func TestWatchEndsWithItsContext(t *testing.T) {
	inBubble(t, false, nil, func(t *testing.T, x *bench) {
		ctx, cancel := context.WithCancel(t.Context())
		s := x.signals(ctx, "k")
		cancel()
		synctest.Wait()
		assert.False(t, s.broken, "a watch that was given up did not break")
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
		assert.True(t, a.broken)
		assert.True(t, b.broken)
		assert.Equal(t, 0, x.store.Len())
		c := x.signals(ctx, "c")
		synctest.Wait()
		assert.False(t, c.broken)
	})
}
