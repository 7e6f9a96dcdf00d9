package call

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
)

// What is what an observer is told of.
type What uint8

// What happens.
const (
	Attempt What = iota + 1
	WaitBegun
	WaitEnded
	Granted
	Renewed
	RenewalFailed
	Lost
	Released
	Refused
)

// Event is what an observer is told.
type Event struct {
	What  What
	Lease uint64 // the number of the lease, or zero
	Key   string
	Label string
	Token uint64
	Took  time.Duration
	Err   error
}

// Observed are the events of one Locker. The zero value has no observer, and tells nobody.
type Observed struct {
	observe func(ctx context.Context, e Event)
	telling *Tracker // calls of the observer under way
	clock   backend.Clock
	leases  atomic.Uint64 // their number

	mu     sync.Mutex
	open   map[*Span]struct{} // which have not ended
	closed bool
}

// By has the observer told, for as long as the tracker is open.
func (o *Observed) By(observe func(context.Context, Event), telling *Tracker, clock backend.Clock) {
	o.observe, o.telling, o.clock, o.open = observe, telling, clock, map[*Span]struct{}{}
}

// On reports whether there is an observer.
func (o *Observed) On() bool { return o.observe != nil }

// Tell tells of something that began at an instant and has just ended.
func (o *Observed) Tell(ctx context.Context, e Event, since backend.Instant) {
	if o.observe == nil || !o.telling.Add() {
		return
	}
	defer o.telling.Done()
	e.Took = o.clock.Now().Sub(since)
	o.observe(ctx, e)
}

// Span is something whose beginning and end the observer is told of, each once and in this
// order, whoever is first to know: a wait, or a lease. A nil Span tells nothing.
type Span struct {
	of    *Observed
	begun Event
	since backend.Instant

	end atomic.Pointer[ending]
	// halves is 1 when the beginning was told or the end is known, and 2 when both are: who
	// makes it 2 tells of the end.
	halves atomic.Int32
}

type ending struct {
	ctx context.Context
	e   Event
}

// Span returns what is to begin with the event, and to end before Close of the Locker has
// returned. A lease gets its number. since is from when the duration of the end counts.
func (o *Observed) Span(e Event, since backend.Instant) *Span {
	if o.observe == nil {
		return nil
	}
	sp := &Span{of: o, begun: e, since: since}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil
	}
	if e.What == Granted {
		sp.begun.Lease = o.leases.Add(1)
	}
	o.open[sp] = struct{}{}
	return sp
}

// Event returns the event that began the span, as another one of the same lease or wait.
func (sp *Span) Event(what What, err error) Event {
	if sp == nil {
		return Event{}
	}
	e := sp.begun
	e.What, e.Err = what, err
	return e
}

// Number is the number of the lease, or zero.
func (sp *Span) Number() uint64 {
	if sp == nil {
		return 0
	}
	return sp.begun.Lease
}

// Tell tells of something within the span that began at an instant and has just ended.
func (sp *Span) Tell(ctx context.Context, what What, since backend.Instant, err error) {
	if sp != nil {
		sp.of.Tell(ctx, sp.Event(what, err), since)
	}
}

// Begin tells of the beginning, which was asked for at an instant. It is called once at most.
func (sp *Span) Begin(ctx context.Context, asked backend.Instant) {
	if sp == nil || !sp.of.telling.Add() {
		return
	}
	defer sp.of.telling.Done()
	e := sp.begun
	e.Took = sp.of.clock.Now().Sub(asked)
	sp.of.observe(ctx, e)
	if sp.halves.Add(1) == 2 {
		sp.tellEnd()
	}
}

// End has the end told, unless there was one before. A span that never begins tells of none.
func (sp *Span) End(ctx context.Context, e Event) {
	if sp == nil || !sp.of.telling.Add() {
		return
	}
	defer sp.of.telling.Done()
	e.Took = sp.of.clock.Now().Sub(sp.since)
	if !sp.end.CompareAndSwap(nil, &ending{ctx, e}) {
		return
	}
	sp.Drop()
	if sp.halves.Add(1) == 2 {
		sp.tellEnd()
	}
}

// Drop forgets a span that never begins.
func (sp *Span) Drop() {
	if sp == nil {
		return
	}
	sp.of.mu.Lock()
	defer sp.of.mu.Unlock()
	delete(sp.of.open, sp)
}

// tellEnd is called by one who is counted as telling.
func (sp *Span) tellEnd() {
	end := sp.end.Load()
	sp.of.observe(end.ctx, end.e)
}

// Close ends what has not ended, with backend.ErrClosed, and lets nothing begin any more.
// The channel is closed when the observer was told.
func (o *Observed) Close() <-chan struct{} {
	told := make(chan struct{})
	o.mu.Lock()
	o.closed = true
	open := make([]*Span, 0, len(o.open))
	for sp := range o.open {
		open = append(open, sp)
	}
	o.mu.Unlock()
	if len(open) == 0 {
		close(told)
		return told
	}
	go func() {
		defer close(told)
		for _, sp := range open {
			what := WaitEnded
			if sp.begun.What == Granted {
				what = Released
			}
			sp.End(context.Background(), sp.Event(what, backend.ErrClosed))
		}
	}()
	return told
}
