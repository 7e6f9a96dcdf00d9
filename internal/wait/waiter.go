package wait

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/call"
)

// waiter is the acquisition at the head of its lane: it does what the machine says, and
// tells it what happens.
type waiter struct {
	a    *acquisition
	lane *lane
	m    machine
	// handedOver: a release of this Locker has granted the lease.
	handedOver bool
}

// askUntilHeld asks, watches where the backend can, and sleeps until the key is held. Where
// the server has a queue, see queue.
func (w *waiter) askUntilHeld(ctx context.Context) (*Lease, error) {
	a := w.a
	next := step{do: actTurn} // what look says without a watch
	if w.m.asked || w.m.watching {
		next = w.m.look(w.view())
	}
	for {
		switch next.do {
		case actTurn:
			t, err := w.nextTurn(ctx)
			if err != nil {
				return nil, err
			}
			next = step{do: actAsk}
			if t != nil {
				next = w.m.turn(t, a.c.server.Clock.Now())
			}
		case actAsk:
			l, err := a.try(ctx)
			if err == nil {
				w.answered()
			}
			if err == nil || a.over(ctx, err) {
				return l, err
			}
			if errors.Is(err, backend.ErrHeld) {
				w.answered()
				w.lane.held.Store(true)
				var held *backend.HeldError
				if errors.As(err, &held) {
					w.lane.by.Store(held)
				}
				next = w.m.refused(w.view())
			} else {
				next = w.trouble(err)
			}
		case actWatch:
			var err error
			if next, err = w.watch(ctx); err != nil {
				return nil, err
			}
		case actSleep:
			var l *Lease
			var err error
			if l, next, err = w.sleep(ctx, next.d); l != nil || err != nil {
				return l, err
			}
		}
	}
}

// trouble is an error of the server. The lane logs the first of several.
func (w *waiter) trouble(err error) step {
	if w.lane.troubled.IsZero() {
		w.lane.troubled = time.Now()
		w.a.c.server.Log.Warn("lock wait without an answer, asking again", "key", w.lane.key.key, "error", err)
	}
	return w.m.trouble(rand.Float64())
}

// answered is the end of that.
func (w *waiter) answered() {
	if since := w.lane.troubled; !since.IsZero() {
		w.lane.troubled = time.Time{}
		w.a.c.server.Log.Info("lock wait answered again", "key", w.lane.key.key, "after", time.Since(since).Round(time.Millisecond))
	}
}

// view is what there is to see for the machine.
func (w *waiter) view() view {
	v := view{now: w.a.c.server.Clock.Now(), roll: rand.Float64(), refusal: refusal{took: w.a.took}}
	if w.a.refusal != nil {
		var held *backend.HeldError
		if errors.As(w.a.refusal, &held) {
			v.refusal.known, v.refusal.since, v.refusal.remaining = true, held.Holder.Since, held.Remaining
		}
	}
	if w.heldHere() {
		v.here = ownHold{true, w.lane.last.Until().Sub(v.now)}
	}
	return v
}

// heldHere reports whether the lane's own last lease stands in the way.
func (w *waiter) heldHere() bool {
	last := w.lane.last
	return w.a.req.Owner == "" && last != nil && last.Context().Err() == nil
}

// watch begins to watch the key for as long as the lane has waiters.
func (w *waiter) watch(ctx context.Context) (step, error) {
	c, key := w.a.c, w.lane.key.key
	life, stop := context.WithCancel(c.server.Calls.Life)
	limited, cancel := context.WithTimeout(ctx, watchBegins)
	defer cancel()
	hints, err := call.WhileOpen(limited, c.server.Calls, nil, func(context.Context) (<-chan backend.Hint, error) {
		return c.watcher.Watch(life, key)
	})
	if err != nil {
		stop()
		if errors.Is(err, backend.ErrClosed) || ctx.Err() != nil {
			return step{}, err
		}
		if errors.Is(err, backend.ErrUnsupported) { // declined
			c.unwatched.Store(true)
			w.m.watches = false
		}
		c.server.Log.Debug("lock watch failed, polling instead", "key", key, "error", err)
		return w.m.unwatched(w.view()), nil
	}
	w.lane.hints, w.lane.stopWatch = hints, stop
	return w.m.watched(w.view()), nil
}

// sleep ends when the watch signals or breaks, when d has passed, when a release of this
// Locker has taken the offer, when ctx ends, or with Close. It returns what to do next, or
// the lease that was handed over, or the reason why the wait is over.
func (w *waiter) sleep(ctx context.Context, d time.Duration) (*Lease, step, error) {
	w.a.waits(ctx)
	timer := w.lane.timer
	if timer == nil {
		timer = time.NewTimer(d)
		w.lane.timer = timer
	} else {
		timer.Reset(d)
	}
	defer timer.Stop()
	o := w.offer()
	var taken <-chan struct{}
	if o != nil {
		taken = o.taken
	}
	var next step
	var err error
	select {
	case <-taken:
		l, left := w.handed(o.handed)
		if left {
			return nil, w.m.othersDue(d), nil
		}
		return l, w.m.tick(), nil
	case hint, ok := <-w.lane.hints:
		next = w.hinted(hint, ok)
	case <-timer.C:
		next = w.m.tick()
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
			return nil, step{}, failed
		}
		if l, left := w.handed(h); !left {
			return l, w.m.tick(), nil
		}
	}
	return nil, next, err
}

// hinted takes note of a signal of the watch, or of its end.
func (w *waiter) hinted(hint backend.Hint, ok bool) step {
	if !ok {
		w.lane.stopWatch()
		w.lane.hints, w.lane.stopWatch = nil, nil
		return w.m.broken(w.view())
	}
	own := hint.Watchers > 0 && w.endTurn()
	return w.m.hint(w.a.c.server.Clock.Now(), hint.Watchers, own, rand.Float64())
}
