package measure_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/measure"
	memlock "github.com/mortiselock/lock/memory"
)

// The key is a channel of one place.
func channel(key chan struct{}, taken func()) measure.Taker {
	return func(ctx context.Context) (func() error, error) {
		select {
		case key <- struct{}{}:
			taken()
			return func() error { <-key; return nil }, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func TestContestCountsTheHoldsOfAllContenders(t *testing.T) {
	t.Parallel()
	var commands atomic.Int64
	take := channel(make(chan struct{}, 1), func() { commands.Add(1) })
	contest := measure.Contest{
		HeldFor: time.Millisecond, Length: 500 * time.Millisecond,
		Commands: func(context.Context) (float64, error) { return float64(commands.Load()), nil },
	}
	r, err := contest.Run(t.Context(), []measure.Taker{take, take, take})
	require.NoError(t, err)
	assert.Positive(t, r.Grants)
	assert.Len(t, r.Waits, r.Grants)
	assert.GreaterOrEqual(t, r.Used, time.Duration(r.Grants)*time.Millisecond)
	assert.Positive(t, r.Commands)
}

// What is before the Length does not count, and a wait that is cut off is no error, but
// counts as the longest.
func TestContestGathersAndCutsOff(t *testing.T) {
	t.Parallel()
	key := make(chan struct{}, 1)
	key <- struct{}{} // nobody gets it
	var early atomic.Int64
	contest := measure.Contest{
		Gather: 300 * time.Millisecond, Length: 50 * time.Millisecond, CutOff: true,
		Commands: func(context.Context) (float64, error) { return float64(early.Load()), nil },
	}
	waits := channel(key, func() {})
	joins := func(ctx context.Context) (func() error, error) { early.Add(1); return waits(ctx) }
	r, err := contest.Run(t.Context(), []measure.Taker{joins, joins})
	require.NoError(t, err)
	assert.Zero(t, r.Grants)
	assert.Zero(t, r.Commands)
	assert.EqualValues(t, 2, early.Load())
	assert.GreaterOrEqual(t, r.Longest, 0.2)
}

func TestContestReportsATakerThatFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	contest := measure.Contest{Length: time.Minute} // the error ends it
	_, err := contest.Run(t.Context(), []measure.Taker{func(context.Context) (func() error, error) { return nil, broken }})
	require.ErrorIs(t, err, broken)
}

// Everybody makes pairs until there are no more, and nobody asks again after that.
func TestTogetherMakesAllPairs(t *testing.T) {
	t.Parallel()
	var taken, back atomic.Int64
	take := func(context.Context) (func() error, error) {
		taken.Add(1)
		return func() error { back.Add(1); return nil }, nil
	}
	asked := 0
	more := measure.Serially(func() bool { asked++; return asked <= 100 })
	pairs, took, err := measure.Together(t.Context(), more, take, take, take)
	require.NoError(t, err)
	assert.Equal(t, 100, pairs)
	assert.EqualValues(t, 100, taken.Load())
	assert.EqualValues(t, 100, back.Load())
	assert.Equal(t, 101, asked)
	assert.Positive(t, took)
}

func TestTogetherEndsWithTheFirstError(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	good := func(context.Context) (func() error, error) { return func() error { return nil }, nil }
	bad := func(context.Context) (func() error, error) { return func() error { return broken }, nil }
	_, _, err := measure.Together(t.Context(), func() bool { return true }, good, bad, good)
	require.ErrorIs(t, err, broken)
}

func TestHoardHoldsAllKeysAndGivesThemBack(t *testing.T) {
	t.Parallel()
	b, err := memlock.NewBackend(t.Context(), nil)
	require.NoError(t, err)
	locker, err := lock.New(b, &lock.Options{TTL: time.Minute})
	require.NoError(t, err)
	defer locker.Close()
	keys := []string{"a", "b", "c"}
	var leases []lock.Lease
	var mu sync.Mutex
	hoard := measure.Hoard{Keys: keys, HeldFor: 10 * time.Millisecond, Take: func(ctx context.Context, key string) (measure.Lease, error) {
		l, err := locker.TryAcquire(ctx, key)
		mu.Lock()
		defer mu.Unlock()
		leases = append(leases, l)
		return l, err
	}}
	rounds := 0
	seen, err := hoard.Run(t.Context(), func() bool {
		for _, key := range keys {
			_, err := locker.TryAcquire(t.Context(), key)
			assert.ErrorIs(t, err, lock.ErrHeld)
		}
		if rounds++; rounds == 2 {
			one := leases[1] // is lost, which is no error
			assert.NoError(t, b.(backend.ForceReleaser).ForceRelease(t.Context(), one.Key(), one.Token()))
			assert.ErrorIs(t, one.Renew(t.Context()), lock.ErrLost)
		}
		return rounds < 2
	})
	require.NoError(t, err)
	assert.Equal(t, 3, seen.Leases)
	assert.Equal(t, 1, seen.Lost)
	for _, key := range keys {
		_, err := locker.TryAcquire(t.Context(), key)
		assert.NoError(t, err, "it was given back")
	}

	_, err = hoard.Run(t.Context(), func() bool { return true })
	require.ErrorIs(t, err, lock.ErrHeld)
}
