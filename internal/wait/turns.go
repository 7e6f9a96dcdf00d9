package wait

import (
	"context"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/schedule"
)

// turn is the turn that a release leaves to other clients: this Locker would take the key
// again before they have heard that it is free. Where nobody waits in this Locker, there
// is no lane and no watch that could tell of the others; the release tells, or where the server
// tells nobody, as with those who poll, the refusal that this Locker met before (doubts).
//
// It begins with the release: an acquisition of this Locker that comes before the answer
// would take the key before anybody knows of the others.
type turn struct {
	since  backend.Instant // the beginning of the release
	until  backend.Instant // so long they have; never while the release is under way
	known  chan struct{}   // closed when the release has ended; nil when nobody waits for that
	took   time.Duration   // how long the server took to release
	others int             // who wait, at least
	usual  time.Duration   // see traffic
	doubts int             // turns that may still be left to others of whom only refusals told
}

// mostDoubts is how many turns in a row are left to others who don't take them. More than
// one, since who polls may just miss one.
const mostDoubts = 3

// openTurn begins the turn of others with a release that will tell of them. It returns nil
// where the release can't.
func (l *Lease) openTurn(now backend.Instant) *turn {
	c := l.c
	if c.teller == nil || c.queuer != nil || l.Hold().Owner != "" {
		return nil
	}
	c.lanes.mu.Lock()
	defer c.lanes.mu.Unlock()
	l.turn = turn{since: now, until: schedule.Never}
	c.lanes.putTurn(l.Hold().Key, &l.turn, now)
	return &l.turn
}

// closeTurn lets those who wait for the end of the release go on. What it has not left to
// others by then is nobody's turn.
func (l *Lease) closeTurn(t *turn) {
	if t == nil {
		return
	}
	ls := &l.c.lanes
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if t.known != nil {
		close(t.known)
	}
	if t.until == schedule.Never && ls.turns[l.Hold().Key] == t {
		delete(ls.turns, l.Hold().Key)
	}
}

// leaveTurn leaves others their turn after a release, which has told so many of them;
// it began at start. Fewer than zero: the server does not say how many wait. t is the turn
// that was begun with the release, or nil.
func (l *Lease) leaveTurn(t *turn, others int, start backend.Instant) {
	c := l.c
	doubts := 0
	if others == 0 && !c.watches() {
		others = -1 // those who poll are not told
	}
	if others < 0 {
		doubts = l.doubts
	}
	if others <= 0 && doubts == 0 {
		return
	}
	now := c.server.Clock.Now()
	took := now.Sub(start)
	d := min(courtesyLeast+4*took, pollMost)
	if l.told > 1 && others+1 >= 2*l.told {
		// A release tells some of them at a time. Those who are told together with this
		// Locker have their turn, some time.
		d = min(d*time.Duration((others+1)/l.told), pollMost)
		others = l.told - 1
	}
	if !c.watches() {
		// Those who poll pause about as long as they have been waiting for this holder.
		d = max(d, min(now.Sub(l.Since()), schedule.Spread(pollMost)))
	}
	ls := &c.lanes
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if t != nil && others > 0 {
		if ls.turns[l.Hold().Key] != t {
			return // a hint has told somebody here already
		}
	} else if ls.m[laneKey{key: l.Hold().Key}] != nil || ls.m[laneKey{l.Hold().Key, l.Hold().Owner}] != nil {
		return // who waits here knows of the others
	}
	if t == nil {
		t = &l.turn
		*t = turn{since: now}
	}
	t.until, t.took, t.others, t.doubts, t.usual = now.Add(d), took, max(others, 1), doubts, l.usual
	ls.putTurn(l.Hold().Key, t, now)
}

// putTurn notes the turn. The mutex is held.
func (ls *lanes) putTurn(key string, t *turn, now backend.Instant) {
	if len(ls.turns) >= ls.sweepAt {
		for key, t := range ls.turns {
			if t.until <= now {
				delete(ls.turns, key)
			}
		}
		ls.sweepAt = max(2*len(ls.turns), 64)
	}
	if ls.turns == nil {
		ls.turns = map[string]*turn{}
	}
	ls.turns[key] = t
}

// turnAt returns the turn of others at the key that goes on, or nil. The mutex is held.
func (ls *lanes) turnAt(key string, now backend.Instant) *turn {
	t := ls.turns[key]
	if t != nil && t.until <= now {
		delete(ls.turns, key)
		return nil
	}
	return t
}

// isOthersTurn reports whether others have their turn at the key.
func (c *Waits) isOthersTurn(key string) bool {
	ls := &c.lanes
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if len(ls.turns) == 0 {
		return false
	}
	t := ls.turnAt(key, c.server.Clock.Now())
	return t != nil && t.until != schedule.Never
}

// endTurn ends the turn that a release of this Locker has left to others, and reports
// whether there was one. The caller, who has a hint of that release, leaves it to them by
// what the hint says.
func (w *waiter) endTurn() bool {
	if w.a.req.Owner != "" {
		return false
	}
	ls := &w.a.c.lanes
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if len(ls.turns) == 0 || ls.turnAt(w.a.req.Key, w.a.c.server.Clock.Now()) == nil {
		return false
	}
	delete(ls.turns, w.a.req.Key)
	return true
}

// nextTurn returns the turn that the caller has to leave to others, or nil. It waits for
// the end of a release of this Locker that is under way, but not for one that hangs.
func (w *waiter) nextTurn(ctx context.Context) (*turn, error) {
	c, key := w.a.c, w.a.req.Key
	ls := &c.lanes
	var patience <-chan time.Time
	for {
		ls.mu.Lock()
		var t *turn
		if len(ls.turns) > 0 {
			t = ls.turnAt(key, c.server.Clock.Now())
		}
		if t == nil || t.until == schedule.Never && w.a.req.Owner != "" {
			ls.mu.Unlock()
			return nil, nil //nolint:nilnil // there is none
		}
		if t.until != schedule.Never {
			delete(ls.turns, key)
			ls.mu.Unlock()
			return t, nil
		}
		if t.known == nil {
			t.known = make(chan struct{})
		}
		known := t.known
		ls.mu.Unlock()
		if patience == nil {
			w.a.waits(ctx)
			timer := time.NewTimer(pollMost)
			defer timer.Stop()
			patience = timer.C
		}
		select {
		case <-known:
		case <-patience:
			return nil, nil //nolint:nilnil // there is none
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-c.server.Calls.Open.Done():
			return nil, backend.ErrClosed
		}
	}
}
