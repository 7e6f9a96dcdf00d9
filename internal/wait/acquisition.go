package wait

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/call"
	"github.com/mortiselock/lock/internal/hold"
)

// acquisition is one call of Acquire or TryAcquire. All its requests carry the
// same acquisition id, so that a repeat finds the grant of a request whose answer
// was lost.
type acquisition struct {
	c       *Waits
	req     backend.Request
	longest time.Duration // to hold, or zero for no limit

	// What is known so far, for the error of a wait that ends without a grant.
	refusal error           // the last refusal: somebody else holds the key
	refused backend.Instant // when that came
	trouble error           // the last error of the server, cleared by any clear answer
	unknown bool            // a request was sent whose outcome is unknown
	flight  *call.Flight    // the request that is why unknown is set, if there is but one
	took    time.Duration   // how long the last answer took

	start backend.Instant // of the call
	wait  *call.Span      // nil until it begins, and where there is no observer

	mu     sync.Mutex // guards the rest, and req.ID
	lease  *Lease     // once granted
	failed bool       // once the caller was told an error
}

// acquisition returns one that begins now.
func (c *Waits) acquisition(req backend.Request, longest time.Duration) *acquisition {
	a := &acquisition{c: c, req: req, longest: longest}
	if c.server.Observed.On() {
		a.start = c.server.Clock.Now()
	}
	return a
}

// ended tells the observer how the acquisition has ended, cleans up after one that has
// failed, and returns the error for the caller.
func (a *acquisition) ended(ctx context.Context, l *Lease, err error) error {
	if err != nil {
		err = a.explain(ctx, err)
	}
	if a.wait != nil {
		a.wait.End(ctx, a.event(call.WaitEnded, l, err))
	} else if err != nil && a.c.server.Observed.On() {
		a.c.server.Observed.Tell(ctx, a.event(call.Refused, nil, err), a.start)
	}
	if err != nil {
		a.fail()
		return err
	}
	l.TellGrant(ctx, a.start)
	return nil
}

// event is one about this acquisition, and about its lease if there is one.
func (a *acquisition) event(what call.What, l *Lease, err error) call.Event {
	e := call.Event{What: what, Key: a.req.Key, Label: a.req.Holder.Label, Err: err}
	if l != nil {
		e.Token, e.Lease = l.Token(), l.Number()
	}
	return e
}

// waits tells the observer that this one waits, if it was not told before.
func (a *acquisition) waits(ctx context.Context) {
	if a.wait == nil {
		a.wait = a.c.server.Observed.Span(a.event(call.WaitBegun, nil, nil), a.start)
		a.wait.Begin(ctx, a.start)
	}
}

// waitsAfter is waits after d, unless the function that it returns is called before.
func (a *acquisition) waitsAfter(ctx context.Context, d time.Duration) (stop func()) {
	calls := a.c.server.Calls
	var sp *call.Span
	if a.wait == nil {
		sp = a.c.server.Observed.Span(a.event(call.WaitBegun, nil, nil), a.start)
	}
	if sp == nil {
		return func() {}
	}
	a.wait = sp
	calls.Follow()
	timer := time.AfterFunc(d, func() {
		defer calls.Done()
		sp.Begin(ctx, a.start)
	})
	return func() {
		if timer.Stop() {
			a.wait = nil
			sp.Drop()
			calls.Done()
		}
	}
}

// contend takes a place in the lane of the key and competes for the key when it
// is at the head.
func (a *acquisition) contend(ctx context.Context) (*Lease, error) {
	c := a.c
	refused := false
	if a.req.Owner != "" && !c.isOthersTurn(a.req.Key) {
		// Re-entry comes before every place in a queue: those who wait there may be
		// waiting for this very owner.
		l, err := a.try(ctx)
		if err == nil || a.over(ctx, err) {
			return l, err
		}
		refused = errors.Is(err, backend.ErrHeld)
	}
	ln, p := c.lanes.enter(laneKey{a.req.Key, a.req.Owner})
	defer c.lanes.leave(ln, p)
	if refused || p != nil {
		a.waits(ctx)
	}
	if p != nil {
		if a.unknown {
			// Those before this one may be of the same owner. What has perhaps been
			// granted to this one must not keep them waiting while it waits for them.
			a.rename()
		}
		select {
		case <-p:
		case <-ctx.Done():
			a.passedOver(ln)
			return nil, ctx.Err()
		case <-c.server.Calls.Open.Done():
			return nil, backend.ErrClosed
		}
	}
	w := waiter{a: a, lane: ln, m: machine{traffic: &ln.traffic, watches: c.watches(), asked: refused && p == nil}}
	if refused || ln.granted {
		ln.held.Store(refused || w.heldHere())
		ln.granted = false
	}
	if refused {
		w.m.doubts = mostDoubts
	}
	var l *Lease
	var err error
	if c.queuer != nil {
		l, err = w.queue(ctx)
	} else {
		l, err = w.askUntilHeld(ctx)
	}
	if l != nil {
		ln.last, ln.granted = l, true
		ln.held.Store(true)
		ln.by.Store(nil)
		if !w.handedOver {
			l.doubts = max(w.m.doubts, 0)
			w.m.granted(l.Since(), a.took)
			l.usual, l.told = w.m.usual, w.m.watchers
		}
	}
	if l == nil && p != nil {
		a.passedOver(ln) // its time may have ended with its turn
	}
	return l, err
}

// passedOver notes, for a caller who gives up behind others of its lane and knows
// nothing itself, whether somebody is known to hold the key.
func (a *acquisition) passedOver(ln *lane) {
	switch {
	case a.refusal != nil || a.trouble != nil || a.unknown:
	case ln.isHeld():
		by := ln.by.Load()
		if by == nil {
			a.refusal = fmt.Errorf("%w: %q: other callers of this Locker are before this one", backend.ErrHeld, a.req.Key)
			return
		}
		// For how long it may go on was asked too long ago.
		a.refusal = fmt.Errorf("%w; other callers of this Locker are before this one", &backend.HeldError{Key: by.Key, Holder: by.Holder})
	default:
		a.trouble = fmt.Errorf("%w: the server has not answered those callers of this Locker who are before this one", backend.ErrUnavailable)
	}
}

// over reports whether an error ends the wait.
func (a *acquisition) over(ctx context.Context, err error) bool {
	return ctx.Err() != nil || call.IsFinal(err)
}

// answerLimit is how long an attempt waits for the server: a grant that takes
// longer has less than a third of its TTL left and would not be used.
func (a *acquisition) answerLimit() time.Duration { return a.req.TTL - a.req.TTL/3 }

// try asks the server once.
func (a *acquisition) try(ctx context.Context) (*Lease, error) {
	c := a.c
	start := c.server.Clock.Now()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.leases.Expect(a.req.ID)
	var g backend.Grant
	var err error
	var sent *call.Flight
	if c.server.Calls.Here(ctx) { // as call.Ask does, without the closures of tryBounded
		limited, cancel := c.server.Calls.Within(ctx, a.answerLimit())
		g, err = c.server.Backend.Try(limited, a.req)
		cancel()
		err = c.server.Calls.ClosedIfUnknown(err)
	} else {
		sent = call.NewFlight()
		g, err = a.tryBounded(ctx, sent)
	}
	end := c.server.Clock.Now()
	a.took = end.Sub(start)
	// A backend that reads the clock late must not lengthen the lease.
	g.Sent = min(g.Sent, start)
	doubted, said := a.unknown, err
	l, err := a.answer(ctx, g, err, end)
	if sent == nil && a.unknown {
		sent = call.Landed(said)
	}
	a.doubtOf(sent, doubted)
	if c.server.Observed.On() {
		c.server.Observed.Tell(ctx, a.event(call.Attempt, l, err), start)
	}
	return l, err
}

// tryBounded asks the server, and stops waiting when ctx ends.
func (a *acquisition) tryBounded(ctx context.Context, sent *call.Flight) (backend.Grant, error) {
	req, server := a.req, a.c.server
	return call.Ask(ctx, server.Calls, a.answerLimit(),
		func(_ backend.Grant, err error) { a.late(req, err) },
		func(ctx context.Context) (backend.Grant, error) {
			g, err := server.Backend.Try(ctx, req)
			sent.Land(err)
			return g, err
		})
}

// answer turns what the backend said into a lease or an error that is
// classified, and remembers what it says about the key. The answer came at the end.
func (a *acquisition) answer(ctx context.Context, g backend.Grant, err error, end backend.Instant) (*Lease, error) {
	if err == nil {
		return a.granted(g, end)
	}
	switch {
	case errors.Is(err, backend.ErrClosed):
		a.doubt()
		return nil, backend.ErrClosed
	case errors.Is(err, backend.ErrHeld):
		a.refusal, a.refused, a.trouble = err, end, nil
		return nil, err
	case errors.Is(err, backend.ErrNotSent):
		if ctx.Err() == nil {
			err = fmt.Errorf("%w: the server could not be asked within %s: %w", backend.ErrUnavailable, a.answerLimit(), err)
			a.trouble = err
		}
		return nil, err
	case call.IsDecided(err):
		a.trouble = err
		return nil, err
	}
	a.doubt()
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("no answer from the server within %s", a.answerLimit())
	}
	err = call.UnknownUnlessKnown(err)
	if ctx.Err() == nil {
		// What the server said last is worth more than that the caller gave up.
		a.trouble = err
	}
	return nil, err
}

// granted turns a grant into a lease, unless it comes too late to be of use.
func (a *acquisition) granted(g backend.Grant, now backend.Instant) (*Lease, error) {
	c := a.c
	if left := g.Until().Sub(now); left < a.req.TTL/3 {
		a.doubt()
		a.trouble = fmt.Errorf("%w: the grant of %q arrived with %s of its TTL of %s left and is given back; the server is slow or the TTL too short",
			backend.ErrOutcomeUnknown, a.req.Key, max(left, 0).Round(time.Millisecond), a.req.TTL)
		return nil, a.trouble
	}
	terms := hold.Terms{Renewed: a.req.Renewed, Longest: a.longest, Label: a.req.Holder.Label}
	l := &Lease{c: c}
	c.leases.Begin(&l.Lease, backend.HoldOf(a.req), g, terms, now)
	if !c.leases.Admit(&l.Lease) {
		a.doubt()
		return nil, backend.ErrClosed
	}
	a.mu.Lock()
	a.lease = l
	a.mu.Unlock()
	c.leases.Heed(&l.Lease)
	return l, nil
}

// late is told what a request returned after nobody waited for it any more. A
// grant that has no living lease, and will get none by a repeat of the request, is
// given back.
func (a *acquisition) late(req backend.Request, err error) {
	if err != nil && call.IsDecided(err) {
		return
	}
	a.mu.Lock()
	l := a.lease
	wanted := req.ID == a.req.ID && !a.failed && (l == nil || l.Context().Err() == nil)
	a.mu.Unlock()
	if wanted {
		return
	}
	if l != nil && l.Hold().ID == req.ID {
		l.ReleasedTwice()
	}
	a.c.server.GiveBack(backend.HoldOf(req)) // the failed call looks for what arrives later
}

// rename gives the acquisition a new id, so that the clean-up of what was sent
// under the old one cannot hit what is sent from now on.
func (a *acquisition) rename() {
	if a.unknown {
		a.c.server.Undo(a.req, a.flight)
		a.unknown, a.flight = false, nil
	}
	a.c.leases.Forget(a.req.ID)
	a.mu.Lock()
	a.req.ID = backend.NewID()
	a.mu.Unlock()
}

// explain is the error for the caller of an acquisition that ends with err.
func (a *acquisition) explain(ctx context.Context, err error) error {
	if ctxErr := ctx.Err(); ctxErr != nil && !errors.Is(err, backend.ErrClosed) {
		return a.gaveUp(ctxErr)
	}
	var held *backend.HeldError
	if err == backend.ErrClosed || errors.As(err, &held) {
		return err
	}
	return fmt.Errorf("lock: acquiring %q: %w", a.req.Key, err)
}

// fail ends the acquisition, whose caller gets an error, and has whatever its requests may
// have left on the server removed in the background.
func (a *acquisition) fail() {
	a.mu.Lock()
	a.failed = true
	a.mu.Unlock()
	a.c.leases.Forget(a.req.ID)
	if a.unknown {
		a.c.server.Undo(a.req, a.flight).Await()
	}
}

// gaveUp is the error of a call whose context ended before the key was held.
func (a *acquisition) gaveUp(ctxErr error) error {
	err := fmt.Errorf("lock: gave up acquiring %q: %w", a.req.Key, ctxErr)
	var held *backend.HeldError
	if errors.As(a.refusal, &held) && a.refusal == error(held) && held.Remaining > 0 {
		now := *held
		now.Remaining = max(held.Remaining-a.c.server.Clock.Now().Sub(a.refused), 0)
		a.refusal = &now
	}
	for _, more := range []error{a.refusal, a.trouble} {
		if more != nil {
			err = fmt.Errorf("%w; %w", err, more)
		}
	}
	if a.unknown && !errors.Is(err, backend.ErrOutcomeUnknown) {
		err = fmt.Errorf("%w; %w", err, backend.ErrOutcomeUnknown)
	}
	return err
}

// doubt notes that something that was sent may have been granted.
func (a *acquisition) doubt() { a.unknown, a.flight = true, nil }

// doubtOf notes that the doubt, which there was not before, is about this request only.
func (a *acquisition) doubtOf(f *call.Flight, before bool) {
	if a.unknown && !before {
		a.flight = f
	}
}
