package measure_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	memlock "github.com/mortiselock/lock/backend/memory"
	"github.com/mortiselock/lock/internal/measure"
)

func TestPrintShowsGoalsAndWhetherTheyAreReached(t *testing.T) {
	t.Parallel()
	bare := &measure.Side{Name: "bare", Figures: []float64{100, 200, 400}}
	slow := &measure.Side{Name: "slow", Figures: []float64{80, 160, 200}, Against: []measure.Comparison{
		{To: bare, Goal: measure.Goal{AtLeast: 0.85}},
		{To: bare, By: "half", Goal: measure.Goal{AtLeast: 0.5, AtMost: 1}},
	}}
	dear := &measure.Side{Name: "dear", Figures: []float64{300}, Goal: measure.Goal{AtMost: 20}}
	var out strings.Builder
	measure.Print(&out, "%.0f/s", bare, slow, dear)
	assert.Equal(t, strings.Join([]string{
		"  bare  200/s",
		"  slow  160/s   ratio to bare 0.80 (0.50 to 0.80)  [aim at least 0.85: below]   ratio to half 0.80 (0.50 to 0.80)  [aim 0.5 to 1: ok]",
		"  dear  300/s  [aim at most 20: above]   ratio to the first 3.00 (3.00 to 3.00)",
		"",
	}, "\n"), out.String())
}

func TestSidesTakeTurnsAndTheFirstRoundIsNotCounted(t *testing.T) {
	t.Parallel()
	turns := map[string]int{}
	last := ""
	side := func(name string) *measure.Side {
		return &measure.Side{Name: name, Take: func(context.Context) (func() error, error) {
			if last != name {
				turns[name]++
			}
			last = name
			return func() error { return nil }, nil
		}}
	}
	a, b := side("a"), side("b")
	require.NoError(t, measure.SideBySide(t.Context(), 2, time.Millisecond, a, b))
	assert.LessOrEqual(t, turns["a"], 3)
	assert.LessOrEqual(t, turns["b"], 3)
	assert.GreaterOrEqual(t, turns["a"]+turns["b"], 4, "two turns that follow each other look like one")
	assert.Len(t, a.Figures, 2)
	assert.Len(t, b.Figures, 2)
}

// A round is many turns of each side, and each cycle has each side once.
func TestTurnsAreShort(t *testing.T) {
	t.Parallel()
	var order strings.Builder
	side := func(name string, takes time.Duration) *measure.Side {
		return &measure.Side{Name: name, Take: func(context.Context) (func() error, error) {
			time.Sleep(takes)
			order.WriteString(name)
			return func() error { return nil }, nil
		}}
	}
	a, b := side("a", 21*time.Millisecond), side("b", 21*time.Millisecond)
	slow := side("c", 110*time.Millisecond) // longer than the whole round
	require.NoError(t, measure.SideBySide(t.Context(), 0, 100*time.Millisecond, a, b, slow))
	assert.ElementsMatch(t, []rune("abc"), []rune(order.String()[:3]), order.String())
	assert.ElementsMatch(t, []rune("ab"), []rune(order.String()[3:5]), order.String())
	assert.ElementsMatch(t, []rune("ab"), []rune(order.String()[5:7]), order.String())
	assert.Equal(t, 1, strings.Count(order.String(), "c"))
	assert.Empty(t, a.Figures)
}

// The sides alternate with every pair, and a few slow pairs do not count.
func TestPairByPairTakesTheMedianPair(t *testing.T) {
	t.Parallel()
	var order strings.Builder
	pairs := 0
	side := func(name string, takes time.Duration) *measure.Side {
		return &measure.Side{Name: name, Take: func(context.Context) (func() error, error) {
			order.WriteString(name)
			if pairs++; pairs%10 == 0 {
				time.Sleep(30 * time.Millisecond)
			}
			time.Sleep(takes)
			return func() error { return nil }, nil
		}}
	}
	a, b := side("a", 2*time.Millisecond), side("b", 10*time.Millisecond)
	require.NoError(t, measure.PairByPair(t.Context(), 2, 200*time.Millisecond, a, b))
	for n := 0; n+2 <= order.Len(); n += 2 {
		assert.ElementsMatch(t, []rune("ab"), []rune(order.String()[n:n+2]), order.String())
	}
	require.Len(t, a.Figures, 2)
	require.Len(t, b.Figures, 2)
	assert.Greater(t, a.Figures[0], 1.5*b.Figures[0])
	assert.LessOrEqual(t, a.Figures[0], 500.0)
	assert.LessOrEqual(t, b.Figures[0], 100.0)

	broken := errors.New("broken")
	c := &measure.Side{Name: "c", Take: func(context.Context) (func() error, error) { return nil, broken }}
	require.ErrorIs(t, measure.PairByPair(t.Context(), 1, time.Millisecond, a, c), broken)
}

func TestContestCountsTheHoldsOfAllContenders(t *testing.T) {
	t.Parallel()
	key := make(chan struct{}, 1)
	var commands, opened, closed atomic.Int64
	contest := measure.Contest{
		Clients: 2, Goroutines: 3, HeldFor: time.Millisecond, Length: 500 * time.Millisecond,
		Commands: func(context.Context) (float64, error) { return float64(commands.Load()), nil },
	}
	one := &measure.Contender{Name: "channel", Open: func() (measure.Taker, func(), error) {
		opened.Add(1)
		return func(context.Context) (func() error, error) {
			key <- struct{}{}
			commands.Add(1)
			return func() error { <-key; return nil }, nil
		}, func() { closed.Add(1) }, nil
	}}
	require.NoError(t, contest.SideBySide(t.Context(), 1, one))
	assert.EqualValues(t, 4, opened.Load(), "2 clients, and as many to warm up")
	assert.EqualValues(t, 4, closed.Load())
	require.Len(t, one.Results, 1)
	r := one.Results[0]
	assert.Positive(t, r.Grants)
	assert.Len(t, r.Waits, r.Grants)
	assert.GreaterOrEqual(t, r.Used, time.Duration(r.Grants)*time.Millisecond)
	assert.Positive(t, r.Commands)
}

func TestContestReportsAContenderThatFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	contest := measure.Contest{Clients: 1, Goroutines: 1, Length: time.Millisecond}
	take := func(context.Context) (func() error, error) { return nil, broken }
	err := contest.SideBySide(t.Context(), 1, &measure.Contender{Name: "it", Takers: []measure.Taker{take}})
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
