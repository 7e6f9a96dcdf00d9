package wait

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/call"
)

// offer is the readiness of a waiting acquisition to be granted the key by the
// release of a lease of the same Locker, in the same round trip.
type offer struct {
	a       *acquisition
	req     backend.Request
	taken   chan struct{} // closed when there is an answer
	handed  handed        // the answer, set before
	settled atomic.Bool   // by whoever is first: the answer, or the end of the wait for it
	run     run           // of which its lease is, once it is taken
}

// run counts the hand-overs since the server was last asked. It goes from lease to lease,
// since a lane may be gone between two of them.
type run struct{ handed, most int }

// mostHandOvers bounds how often in a row a Locker hands the key over to waiters of
// its own. A hand-over tells no other client, so after each of those who wait here
// has had one turn, the key is released, and the other clients have theirs.
const mostHandOvers = 16

// handed is what became of an offer that was taken.
type handed struct {
	grant backend.Grant
	err   error
	run   run
}

// offer puts the acquisition at the head of the lane up for a hand-over, where the
// backend can do it. An explicit owner is left out: its hold may not be the last.
func (w *waiter) offer() *offer {
	if !w.a.c.mayHandOver() || w.a.req.Owner != "" {
		return nil
	}
	o := &offer{a: w.a, req: w.a.req, taken: make(chan struct{})}
	ls := &w.a.c.lanes
	ls.mu.Lock()
	w.lane.offer = o
	ls.mu.Unlock()
	return o
}

// withdraw takes the offer back. It returns false when a release has taken it;
// its answer is still to come then.
func (w *waiter) withdraw(o *offer) bool {
	ls := &w.a.c.lanes
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if w.lane.offer != o {
		return false
	}
	w.lane.offer = nil
	return true
}

// takeOffer returns who waits for the key of the lease in this Locker, if anybody
// does and the backend can hand it over.
func (l *Lease) takeOffer() *offer {
	if !l.c.mayHandOver() || l.Hold().Owner != "" {
		return nil
	}
	ls := &l.c.lanes
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ln := ls.m[laneKey{key: l.Hold().Key}]
	if ln == nil || ln.offer == nil {
		return nil
	}
	next := l.run
	if next.handed == 0 {
		next.most = min(1+len(ln.waiting), mostHandOvers)
	}
	if next.handed >= next.most {
		return nil
	}
	next.handed++
	o := ln.offer
	o.run, ln.offer = next, nil
	return o
}

// answered waits for the answer to an offer that was taken.
func (o *offer) answered(ctx context.Context, c *Waits) (handed, error) {
	var gaveUp error
	select {
	case <-o.taken:
		return o.handed, nil
	case <-ctx.Done():
		gaveUp = ctx.Err()
	case <-c.server.Calls.Open.Done():
		gaveUp = backend.ErrClosed
	}
	if !o.settled.CompareAndSwap(false, true) {
		<-o.taken
		return o.handed, nil
	}
	return handed{}, gaveUp
}

// answer tells the waiter, or gives back what it no longer waits for.
func (o *offer) answer(c *Waits, h handed) {
	if o.settled.CompareAndSwap(false, true) {
		o.handed = h
		close(o.taken)
	} else if h.err == nil || !call.IsDecided(h.err) {
		c.server.Undo(o.req, nil)
	}
}

// handed turns the answer to an offer into a lease, or into nil when the server
// has to be asked. It also reports whether the key was left to other clients.
func (w *waiter) handed(h handed) (l *Lease, left bool) {
	switch {
	case h.err == nil:
		w.handedOver = true
		l, _ = w.a.granted(h.grant, w.a.c.server.Clock.Now()) // a grant that comes too late is asked for again
		if l != nil {
			l.run = h.run
		}
	case errors.Is(h.err, backend.ErrHeld):
		left = true
	case !call.IsDecided(h.err):
		w.a.doubt()
	}
	return l, left
}

// releaseTo releases the hold and grants the key to a waiter of this Locker in one
// step. It returns false when that was not possible or its outcome is unknown, and
// a plain release has to follow.
func (l *Lease) releaseTo(ctx context.Context, o *offer, giveUp <-chan struct{}, here bool) (bool, error) {
	c := l.c
	start := c.server.Clock.Now()
	var g backend.Grant
	var err error
	if here {
		g, err = c.handOver.HandOver(ctx, *l.Hold(), o.req)
	} else {
		g, err = call.Bounded(ctx, c.server.Calls, giveUp,
			func(_ backend.Grant, err error) { o.a.late(o.req, err) },
			func(ctx context.Context) (backend.Grant, error) { return c.handOver.HandOver(ctx, *l.Hold(), o.req) })
	}
	g.Sent = min(g.Sent, start)
	if err == nil {
		l.TellRelease(ctx) // before the waiter's grant is told
	}
	switch {
	case err == nil:
		c.handsOver.Store(true)
	case errors.Is(err, backend.ErrUnsupported) && !c.handsOver.Load():
		// To be declined each time would be to ask first each time, before those who are told.
		c.unhanded.Store(true)
	}
	// Without an answer the waiter asks the server, as the same acquisition.
	o.answer(c, handed{g, err, o.run})
	switch {
	case err == nil, errors.Is(err, backend.ErrHeld):
		return true, nil
	case errors.Is(err, backend.ErrNotHeld):
		return true, err
	}
	return false, err
}
