package lock_test

import (
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

// jumping is a clock that can run ahead of the runtime's timers, as the boot clock
// does while the machine is suspended.
type jumping struct{ ahead atomic.Int64 }

func (j *jumping) Now() backend.Instant {
	return backend.RuntimeClock().Now().Add(time.Duration(j.ahead.Load()))
}

func (j *jumping) suspend(d time.Duration) { j.ahead.Add(int64(d)) }

// TestSuspendCountsTowardsTheDeadline: the machine sleeps for longer than the
// lease. The first look after waking tells, without waiting for a timer, and those
// who only wait for the context are told within a second.
func TestSuspendCountsTowardsTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := &jumping{}
		l, err := memlock.New(t.Context(), &memlock.Options{Store: memlock.NewStore(clock)})
		require.NoError(t, err)
		defer l.Close()
		looked, err := l.Acquire(t.Context(), "a", lock.WithTTL(time.Minute))
		require.NoError(t, err)
		waited, err := l.Acquire(t.Context(), "b", lock.WithTTL(time.Minute))
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		require.NoError(t, looked.Context().Err())

		clock.suspend(2 * time.Minute)
		require.Error(t, looked.Context().Err())
		assert.ErrorIs(t, cause(looked), lock.ErrExpired)
		woken := time.Now()
		<-waited.Context().Done()
		assert.LessOrEqual(t, time.Since(woken), time.Second)
		assert.ErrorIs(t, cause(waited), lock.ErrExpired)
		assert.ErrorIs(t, looked.Release(t.Context()), lock.ErrLost)
	})
}

// stumbling is a clock whose reader stands still once, before it reads.
type stumbling struct{ stumble atomic.Bool }

func (s *stumbling) Now() backend.Instant {
	if s.stumble.Swap(false) {
		time.Sleep(8 * time.Millisecond)
	}
	return backend.RuntimeClock().Now()
}

// TestDeadlineStandsStill: a goroutine that stands still while it asks for the deadline
// does not see it move.
func TestDeadlineStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := &stumbling{}
		l, err := memlock.New(t.Context(), &memlock.Options{Store: memlock.NewStore(clock)})
		require.NoError(t, err)
		defer l.Close()
		lease, err := l.Acquire(t.Context(), "a", lock.WithoutRenewal())
		require.NoError(t, err)
		first, _ := lease.Deadline()
		clock.stumble.Store(true)
		second, _ := lease.Deadline()
		assert.Equal(t, first, second)
		require.NoError(t, lease.Release(t.Context()))
	})
}

func TestSystemClockAdvances(t *testing.T) {
	clock := backend.SystemClock()
	a := clock.Now()
	time.Sleep(20 * time.Millisecond)
	d := clock.Now().Sub(a)
	assert.GreaterOrEqual(t, d, 20*time.Millisecond)
	assert.Less(t, d, 20*time.Second)
}
