package wait

import (
	"context"
	"errors"
	"fmt"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/call"
	"github.com/mortiselock/lock/internal/reentry"
)

// queue waits in the queue of the server, and takes a new place when the old one
// was lost. An explicit owner asks before: it may hold the key by now, and must not
// wait for itself.
func (w *waiter) queue(ctx context.Context) (*Lease, error) {
	a := w.a
	for {
		if a.req.Owner != "" && !w.m.asked {
			l, err := a.try(ctx)
			if err == nil || a.over(ctx, err) {
				return l, err
			}
			w.m.asked = errors.Is(err, backend.ErrHeld)
		}
		if a.req.Owner == "" || w.m.asked {
			w.m.asked = false
			if a.unknown {
				a.rename()
			}
			l, err := w.inQueue(ctx)
			if errors.Is(err, backend.ErrUnsupported) { // declined
				return w.askUntilHeld(ctx)
			}
			if err == nil || a.over(ctx, err) {
				return l, err
			}
			if err == reentry.ErrOwnerHolds {
				continue
			}
			a.c.server.Log.Debug("lock queue place lost, queueing again", "key", a.req.Key, "error", err)
			a.rename()
		}
		for next := w.trouble(a.trouble); next.do == actSleep; {
			var l *Lease
			var err error
			if l, next, err = w.sleep(ctx, next.d); l != nil || err != nil {
				return l, err
			}
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
		if err == nil && t == nil { // or else whoever looks at the place crashes, in the background too
			err = fmt.Errorf("%w: the backend returned neither a place in its queue nor an error", backend.ErrPermanent)
		}
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
	w.answered()
	w.lane.place.Store(&ticket)
	defer w.lane.place.Store(nil)
	placed := c.server.Clock.Now()
	stop := func() {}
	if ticket.Behind() {
		a.waits(ctx)
	} else {
		stop = a.waitsAfter(ctx, placed.Sub(start)+courtesyLeast)
	}
	g, err := call.Ask(ctx, c.server.Calls, 0, func(backend.Grant, error) { c.withdraw(req, ticket) },
		func(ctx context.Context) (backend.Grant, error) { return ticket.Wait(ctx) })
	stop()
	behind := ticket.Behind()
	if behind {
		w.lane.held.Store(true)
		if a.refusal == nil {
			a.refusal = fmt.Errorf("%w: %q: somebody holds the key, or is before this one in its queue", backend.ErrHeld, req.Key)
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
	c.server.Observed.Tell(ctx, a.event(call.Attempt, l, err), start)
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
