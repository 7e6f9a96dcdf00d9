package call

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
)

// told is an observer that keeps what it is told.
type told struct {
	mu     sync.Mutex
	events []Event
}

func (t *told) observe(_ context.Context, e Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.Took = 0
	t.events = append(t.events, e)
}

func observed(observe func(context.Context, Event)) (*Observed, *Tracker) {
	var o Observed
	var telling Tracker
	o.By(observe, &telling, backend.RuntimeClock())
	return &o, &telling
}

var errLost = errors.New("lost")

// A loss may be known before the grant was told.
func TestEndIsToldAfterTheBeginningAndOnce(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(begin, end func()){
		"in order":      func(begin, end func()) { begin(); end(); end() },
		"end first":     func(begin, end func()) { end(); end(); begin() },
		"end meanwhile": func(begin, end func()) { end(); begin(); end() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got told
			o, _ := observed(got.observe)
			sp := o.Span(Event{What: Granted, Key: "k", Label: "a label", Token: 7}, 0)
			do(func() { sp.Begin(t.Context(), 0) }, func() { sp.End(t.Context(), sp.Event(Lost, errLost)) })
			require.Equal(t, []Event{
				{What: Granted, Lease: 1, Key: "k", Label: "a label", Token: 7},
				{What: Lost, Lease: 1, Key: "k", Label: "a label", Token: 7, Err: errLost},
			}, got.events)
			require.Empty(t, o.open)
		})
	}
}

func TestEndsOfManyAtTheSameTimeAreToldOnce(t *testing.T) {
	t.Parallel()
	for range 200 {
		var got told
		o, telling := observed(got.observe)
		var all sync.WaitGroup
		for range 4 {
			sp := o.Span(Event{What: Granted, Key: "k"}, 0)
			all.Go(func() { sp.Begin(t.Context(), 0) })
			all.Go(func() { sp.End(t.Context(), sp.Event(Lost, errLost)) })
			all.Go(func() { sp.End(t.Context(), sp.Event(Released, nil)) })
		}
		all.Go(func() {
			<-o.Close()
			telling.Close()
		})
		all.Wait()
		<-telling.Idle()
		granted, ended := map[uint64]int{}, map[uint64]int{}
		for _, e := range got.events {
			if e.What == Granted {
				granted[e.Lease]++
				require.Zero(t, ended[e.Lease], "the end before the beginning")
			} else {
				ended[e.Lease]++
			}
		}
		require.Equal(t, granted, ended)
		for _, n := range granted {
			require.Equal(t, 1, n)
		}
	}
}

func TestCloseEndsWhatHasBegun(t *testing.T) {
	t.Parallel()
	var got told
	o, _ := observed(got.observe)
	lease, wait := o.Span(Event{What: Granted}, 0), o.Span(Event{What: WaitBegun}, 0)
	o.Span(Event{What: WaitBegun, Key: "never begins"}, 0)
	lease.Begin(t.Context(), 0)
	wait.Begin(t.Context(), 0)
	<-o.Close()
	lease.End(t.Context(), lease.Event(Released, nil))
	require.Nil(t, o.Span(Event{What: Granted}, 0))
	require.Len(t, got.events, 4)
	require.ElementsMatch(t, []Event{{What: Released, Lease: 1, Err: backend.ErrClosed}, {What: WaitEnded, Err: backend.ErrClosed}}, got.events[2:])
}

func TestWithoutAnObserverNothingIsAllocated(t *testing.T) {
	var o Observed
	ctx := t.Context()
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		sp := o.Span(Event{What: Granted, Key: "k"}, backend.Instant(time.Second))
		sp.Begin(ctx, 0)
		sp.Tell(ctx, Renewed, 0, nil)
		sp.End(ctx, sp.Event(Released, nil))
		o.Tell(ctx, Event{What: Attempt}, 0)
	}))
}
