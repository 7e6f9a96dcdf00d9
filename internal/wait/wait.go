package wait

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/call"
	"github.com/mortiselock/lock/internal/reentry"
	"github.com/mortiselock/lock/internal/schedule"
)

// How long a waiter sleeps before it asks the server again without being told
// to. Every sleep is lengthened at random, by up to a quarter, so that those who were
// refused together don't ask together.
const (
	pollWatched   = 2 * time.Second       // under a watch: only for signals that got lost
	pollFirst     = 15 * time.Millisecond // without a watch, less if the server is fast, growing to
	pollMost      = 250 * time.Millisecond
	troubleFirst  = 25 * time.Millisecond // after an error of the server, doubling to
	troubleMost   = 2 * time.Second
	courtesyLeast = 2 * time.Millisecond   // for another client to take a key that was left to it
	courtesyMost  = 25 * time.Millisecond  // and to give it back, if that is what it usually takes
	expiryPadding = 2 * time.Millisecond   // after the time at which the holder's lease can end
	expirySpread  = 100 * time.Millisecond // at most, between those who wait for that time
)

// acquire waits until the key is held, ctx ends, or an error says that waiting is
// of no use.
func (a *acquisition) acquire(ctx context.Context) (*Lease, error) {
	start := a.c.server.Clock.Now()
	l, waited, err := a.contend(ctx)
	if waited {
		a.c.server.Tell(ctx, call.Wait, a.req.Key, tokenOf(l), start, err)
	}
	return l, err
}

// contend takes a place in the lane of the key and competes for the key when the
// turn comes. It also reports whether there was a wait.
func (a *acquisition) contend(ctx context.Context) (*Lease, bool, error) {
	c := a.c
	refused := false
	if a.req.Owner != "" && !c.isLeft(a.req.Key) {
		// Re-entry comes before every place in a queue: those who wait there may be
		// waiting for this very owner.
		l, err := a.try(ctx)
		if err == nil || a.over(ctx, err) {
			return l, false, err
		}
		refused = errors.Is(err, backend.ErrHeld)
	}
	ln, p := c.lanes.enter(laneKey{a.req.Key, a.req.Owner})
	defer c.lanes.leave(ln, p)
	if p.turn != nil {
		if a.unknown {
			// Those before this one may be of the same owner. What has perhaps been
			// granted to this one must not keep them waiting while it waits for them.
			a.rename()
		}
		select {
		case <-p.turn:
		case <-ctx.Done():
			a.passedOver(ln)
			return nil, true, ctx.Err()
		case <-c.server.Calls.Open.Done():
			return nil, true, backend.ErrClosed
		}
	}
	w := waiter{a: a, lane: ln, asked: refused && p.turn == nil}
	if refused || ln.granted {
		ln.held.Store(refused || w.heldHere())
		ln.granted = false
	}
	if refused {
		w.doubts = mostDoubts
	}
	var l *Lease
	var err error
	if c.queuer != nil {
		l, err = w.queue(ctx)
	} else {
		l, err = w.poll(ctx)
	}
	if l != nil {
		ln.last, ln.granted = l, true
		ln.held.Store(true)
		if !w.handedOver {
			l.doubts = max(w.doubts, 0)
			ln.yield, ln.took = ln.watchers-1, a.took
		}
	}
	if l == nil && p.turn != nil {
		a.passedOver(ln) // its time may have ended with its turn
	}
	return l, refused || p.turn != nil || w.slept, err
}

// passedOver notes, for a caller who gives up behind others of its lane and knows
// nothing itself, whether somebody is known to hold the key.
func (a *acquisition) passedOver(ln *lane) {
	switch {
	case a.refusal != nil || a.trouble != nil || a.unknown:
	case ln.isHeld():
		a.refusal = fmt.Errorf("%w: %q: other callers of this Locker are before this one", backend.ErrHeld, a.req.Key)
	default:
		a.trouble = fmt.Errorf("%w: the server has not answered those callers of this Locker who are before this one", backend.ErrUnavailable)
	}
}

// over reports whether an error ends the wait.
func (a *acquisition) over(ctx context.Context, err error) bool {
	return ctx.Err() != nil || call.IsFinal(err)
}

// waiter is the acquisition at the head of its lane.
type waiter struct {
	a     *acquisition
	lane  *lane
	asked bool // the server was asked just now and refused
	slept bool // there was a wait
	// handedOver: a release of this Locker has granted the lease.
	handedOver bool

	timer *time.Timer
	fails int       // errors of the server in a row
	polls int       // refusals in a row without a watch, and by the same holder
	since time.Time // of that holder
	// doubts are the turns that the lease leaves to others of whom only refusals tell.
	doubts int
}

// poll asks, watches, asks again, and then sleeps until the watch signals or it
// is time to ask anyway. The second question closes the gap between the first
// refusal and the watch.
func (w *waiter) poll(ctx context.Context) (*Lease, error) {
	a, c := w.a, w.a.c
	defer w.stop()
	for {
		if w.worthAsking() {
			if l, err := w.giveTurn(ctx); l != nil || err != nil {
				return l, err
			}
			l, err := a.try(ctx)
			if err == nil || a.over(ctx, err) {
				return l, err
			}
			if !errors.Is(err, backend.ErrHeld) {
				w.fails++
				if l, err := w.sleep(ctx, backoff(troubleFirst, troubleMost, w.fails)); l != nil || err != nil {
					return l, err
				}
				continue
			}
			w.lane.held.Store(true)
		}
		w.fails = 0
		if !w.heldHere() {
			w.doubts = mostDoubts
		}
		if c.watcher != nil && w.lane.hints == nil && c.server.Clock.Now() >= w.lane.watchAt {
			watching, err := w.watch(ctx)
			if err != nil {
				return nil, err
			}
			if watching {
				continue
			}
		}
		if l, err := w.sleep(ctx, w.interval()); l != nil || err != nil {
			return l, err
		}
	}
}

// worthAsking is false while this Locker itself holds the key and a watch will
// tell of its release, and when the server was asked a moment ago.
func (w *waiter) worthAsking() bool {
	if w.asked {
		w.asked = false
		return false
	}
	return w.slept || w.lane.hints == nil || !w.heldHere()
}

// heldHere reports whether the lane's own last lease stands in the way.
func (w *waiter) heldHere() bool {
	last := w.lane.last
	return w.a.req.Owner == "" && last != nil && last.Context().Err() == nil
}

// watch begins to watch the key for as long as the lane has waiters. It returns
// false when the watch cannot be had for now.
func (w *waiter) watch(ctx context.Context) (bool, error) {
	c := w.a.c
	life, stop := context.WithCancel(c.server.Calls.Life)
	limited, cancel := context.WithTimeout(ctx, pollWatched)
	defer cancel()
	hints, err := call.WhileOpen(limited, c.server.Calls, nil, func(context.Context) (<-chan backend.Hint, error) {
		return c.watcher.Watch(life, w.lane.key.key)
	})
	if err != nil {
		stop()
		if errors.Is(err, backend.ErrClosed) || ctx.Err() != nil {
			return false, err
		}
		c.server.Log.Debug("lock watch failed, polling instead", "key", w.lane.key.key, "error", err)
		w.watchFailed()
		return false, nil
	}
	w.lane.hints, w.lane.stopWatch = hints, stop
	return true, nil
}

// watchFailed has the lane poll for a while before the next watch.
func (w *waiter) watchFailed() {
	ln := w.lane
	ln.watchFails++
	ln.watchAt = w.a.c.server.Clock.Now().Add(backoff(troubleFirst, troubleMost, ln.watchFails))
}

// interval is how long to sleep after a refusal: not longer than the holder's
// lease can last, nor than the poll interval.
func (w *waiter) interval() time.Duration {
	var held *backend.HeldError
	refused := errors.As(w.a.refusal, &held)
	d := schedule.Spread(pollWatched)
	if w.lane.hints == nil {
		// A key that changes hands may be free soon; a holder of long standing may
		// stay for as long again.
		if refused && !held.Holder.Since.Equal(w.since) {
			w.polls, w.since = 0, held.Holder.Since
		}
		w.polls++
		d = backoff(min(pollFirst, courtesyLeast+4*w.a.took), pollMost, w.polls)
	}
	if refused && held.Remaining > 0 {
		// The other clients that wait know the same time. A holder that renews would
		// bring them into step.
		d = min(d, held.Remaining+expiryPadding+rand.N(min(held.Remaining/8, expirySpread)+1))
	}
	if w.heldHere() {
		d = min(d, max(w.lane.last.Until().Sub(w.a.c.server.Clock.Now()), 0)+expiryPadding)
	}
	return d
}

// sleep returns when the watch signals or d has passed, with the reason why the
// wait is over, or with the lease that a release of this Locker handed over.
func (w *waiter) sleep(ctx context.Context, d time.Duration) (*Lease, error) {
	w.slept = true
	if w.timer == nil {
		w.timer = time.NewTimer(d)
	} else {
		w.timer.Reset(d)
	}
	o := w.offer()
	var taken <-chan handed
	if o != nil {
		taken = o.taken
	}
	courtesy := false
	var err error
	select {
	case h := <-taken:
		if l, left := w.handed(h); !left || w.lane.hints == nil {
			return l, nil
		}
		// The hint that the watch has for everybody counts whose turn it is.
		return w.sleep(ctx, d)
	case hint, ok := <-w.lane.hints:
		courtesy = w.hinted(hint, ok)
	case <-w.timer.C:
	case <-ctx.Done():
		err = ctx.Err()
	case <-w.a.c.server.Calls.Open.Done():
		err = backend.ErrClosed
	}
	if o != nil && !w.withdraw(o) {
		h, failed := o.answered(ctx, w.a.c)
		if failed != nil {
			// What is handed over will be given back, by the release or by the clean-up.
			w.a.doubt()
			return nil, failed
		}
		if l, left := w.handed(h); !left {
			return l, nil
		}
	}
	if courtesy && err == nil {
		return w.sleep(ctx, w.lane.courtesy())
	}
	return nil, err
}

// hinted takes note of a signal of the watch, or of its end. It returns true when
// the key should be left to other clients for a moment: they take it, and their
// release is the next hint; if they don't, the courtesy has been enough.
func (w *waiter) hinted(hint backend.Hint, ok bool) bool {
	ln := w.lane
	if !ok {
		// The watch broke. Ask, and set up another one later.
		ln.stopWatch()
		ln.hints, ln.stopWatch = nil, nil
		ln.watchers, ln.yield = 0, 0
		w.watchFailed()
		return false
	}
	ln.watchFails = 0
	now := w.a.c.server.Clock.Now()
	ln.apart, ln.hinted = now.Sub(ln.hinted), now
	ln.watchers = hint.Watchers
	if hint.Watchers > 0 {
		if w.takeTurn() {
			ln.yield = hint.Watchers - 1 // it is this Locker that released
		}
		ln.yield = min(ln.yield, hint.Watchers)
	}
	ln.yield--
	return ln.yield >= 0
}

// courtesy is how long the key is left to other clients: so long that one of them can
// take it, and a little longer than from one release to the next, since then the next
// release says that it was taken, and costs the server nothing.
func (ln *lane) courtesy() time.Duration {
	return max(min(courtesyLeast+4*ln.took, pollMost), min(ln.apart*3/2, courtesyMost))
}

func (w *waiter) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// backoff grows from first to most, doubling from the second time on.
func backoff(first, most time.Duration, times int) time.Duration {
	d := first
	for range min(times, 16) - 1 {
		d = min(2*d, most)
	}
	return schedule.Spread(d)
}

// queue waits in the queue of the server, and takes a new place when the old one
// was lost. An explicit owner asks before: it may hold the key by now, and must not
// wait for itself.
func (w *waiter) queue(ctx context.Context) (*Lease, error) {
	a := w.a
	defer w.stop()
	for {
		if a.req.Owner != "" && !w.asked {
			l, err := a.try(ctx)
			if err == nil || a.over(ctx, err) {
				return l, err
			}
			w.asked = errors.Is(err, backend.ErrHeld)
		}
		if a.req.Owner == "" || w.asked {
			w.asked = false
			if a.unknown {
				a.rename()
			}
			l, err := w.inQueue(ctx)
			if err == nil || a.over(ctx, err) {
				return l, err
			}
			if err == reentry.ErrOwnerHolds {
				continue
			}
			a.c.server.Log.Debug("lock queue place lost, queueing again", "key", a.req.Key, "error", err)
			a.rename()
		}
		w.fails++
		if l, err := w.sleep(ctx, backoff(troubleFirst, troubleMost, w.fails)); l != nil || err != nil {
			return l, err
		}
	}
}

// inQueue takes one place in the server's queue and waits there.
func (w *waiter) inQueue(ctx context.Context) (*Lease, error) {
	a, c := w.a, w.a.c
	c.leases.Expect(a.req.ID)
	start := c.server.Clock.Now()
	req, sent := a.req, call.NewFlight()
	ticket, err := call.Ask(ctx, c.server.Calls, a.answerLimit(), func(t backend.Ticket, err error) {
		if err == nil {
			c.withdraw(req, t)
		}
	}, func(ctx context.Context) (backend.Ticket, error) {
		t, err := c.queuer.Enqueue(ctx, req)
		sent.Land(err)
		return t, err
	})
	if err == reentry.ErrOwnerHolds {
		return nil, err
	}
	if err != nil {
		doubted := a.unknown
		_, err = a.answer(ctx, backend.Grant{}, err, c.server.Clock.Now())
		a.doubtOf(sent, doubted)
		return nil, err
	}
	a.trouble = nil // the server is there
	w.lane.place.Store(&ticket)
	defer w.lane.place.Store(nil)
	placed := c.server.Clock.Now()
	g, err := call.Ask(ctx, c.server.Calls, 0, func(backend.Grant, error) { c.withdraw(req, ticket) },
		func(ctx context.Context) (backend.Grant, error) { return ticket.Wait(ctx) })
	if c.server.Clock.Now().Sub(placed) > placed.Sub(start)+courtesyLeast {
		w.slept = true // longer than the answer of a server that grants at once
	}
	behind := ticket.Behind()
	if behind {
		w.lane.held.Store(true)
		if a.refusal == nil {
			a.refusal = fmt.Errorf("%w: %q: others are before this one in the queue", backend.ErrHeld, req.Key)
		}
	}
	var l *Lease
	if err == nil {
		l, err = a.granted(g, c.server.Clock.Now())
	} else if ctx.Err() != nil && !behind {
		a.trouble = fmt.Errorf("%w: no answer from the server to the place in its queue", backend.ErrOutcomeUnknown)
	} else if ctx.Err() == nil && !errors.Is(err, backend.ErrClosed) {
		if errors.Is(err, backend.ErrNotHeld) {
			// It was the place that was lost, and no hold.
			err = fmt.Errorf("%w: the place in the queue was lost: %v", backend.ErrUnavailable, err)
		}
		err = call.UnknownUnlessKnown(err)
		a.trouble = err
	}
	if err != nil {
		c.withdraw(req, ticket).Await()
	}
	c.server.Tell(ctx, call.Attempt, req.Key, tokenOf(l), start, err)
	return l, err
}

// withdraw gives a place up in the background until the server confirms it.
func (c *Waits) withdraw(req backend.Request, t backend.Ticket) *call.CleanUp {
	late := func(error) bool {
		l, ok := t.(backend.LateTicket)
		return ok && l.MayArrive()
	}
	return c.server.CleanUp(req.Key, req.TTL, late, func(ctx context.Context) error {
		if err := t.Withdraw(ctx); err != nil {
			return fmt.Errorf("withdrawing: %w", err)
		}
		return nil
	})
}
