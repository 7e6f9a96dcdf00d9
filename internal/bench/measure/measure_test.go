package measure_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/internal/bench/measure"
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
	var order []string
	side := func(name string) *measure.Side {
		return &measure.Side{Name: name, Take: func(context.Context) (func() error, error) {
			if len(order) == 0 || order[len(order)-1] != name {
				order = append(order, name)
			}
			return func() error { return nil }, nil
		}}
	}
	a, b := side("a"), side("b")
	require.NoError(t, measure.SideBySide(t.Context(), 2, time.Millisecond, a, b))
	assert.Equal(t, []string{"a", "b", "a", "b", "a", "b"}, order)
	assert.Len(t, a.Figures, 2)
	assert.Len(t, b.Figures, 2)
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
