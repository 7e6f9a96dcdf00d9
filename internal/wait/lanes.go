package wait

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
)

// lanes let one acquisition per key and owner contend on the server at a time;
// the others of this Locker wait behind it, first come, first served. That keeps
// the load on the server independent of the number of waiters in a process, and
// makes waiting within a Locker fair.
//
// Acquisitions without an owner share one lane per key. The one at the head of a
// lane owns the lane's watch.
type lanes struct {
	mu sync.Mutex
	m  map[laneKey]*lane
	// spare is a lane that nobody has any more, for the next key.
	spare *lane

	turns   map[string]*turn // that are left to other clients, by key
	sweepAt int              // the number of them at which those that are over go
}

type laneKey struct{ key, owner string }

type lane struct {
	key     laneKey
	waiting []place // behind the head; guarded by lanes.mu
	offer   *offer  // of the head, to be handed the key; guarded by lanes.mu

	// Of the head, for those behind it who give up.
	held  atomic.Bool                       // the server has said so, or the lane holds the key itself
	place atomic.Pointer[backend.Ticket]    // at which it waits
	by    atomic.Pointer[backend.HeldError] // who holds the key, if the server has said so

	// Only the head uses the rest.
	traffic
	timer     *time.Timer         // of its sleep
	hints     <-chan backend.Hint // the watch, or nil
	stopWatch context.CancelFunc  // ends it
	last      *Lease              // what the lane was granted last
	granted   bool                // by the head before
	troubled  time.Time           // since when the server has not answered, or zero
}

// isHeld reports whether it is known that somebody holds the key.
func (ln *lane) isHeld() bool {
	if ln.held.Load() {
		return true
	}
	t := ln.place.Load()
	return t != nil && (*t).Behind()
}

// forget makes the lane one that was never used. Its timer has stopped.
func (ln *lane) forget() {
	ln.key, ln.traffic, ln.offer = laneKey{}, traffic{}, nil
	ln.held.Store(false)
	ln.place.Store(nil)
	ln.by.Store(nil)
	ln.waiting, ln.hints, ln.stopWatch, ln.last, ln.granted = nil, nil, nil, nil, false
	ln.troubled = time.Time{}
}

// place is where one acquisition stands in a lane. It is closed when it is the head; nil if
// it was from the beginning.
type place chan struct{}

// enter takes the last place.
func (ls *lanes) enter(k laneKey) (*lane, place) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.m[k]
	if l == nil {
		if l, ls.spare = ls.spare, nil; l == nil {
			l = &lane{}
		}
		l.key, l.watchAt = k, math.MinInt64
		ls.m[k] = l
		return l, nil
	}
	p := make(place)
	l.waiting = append(l.waiting, p)
	return l, p
}

// leave gives the place up; the next in line becomes the head. The last to leave
// ends the watch.
func (ls *lanes) leave(l *lane, p place) {
	ls.mu.Lock()
	if i := slices.Index(l.waiting, p); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
		ls.mu.Unlock()
		return
	}
	// The place was the head.
	if len(l.waiting) > 0 {
		next := l.waiting[0]
		l.waiting = slices.Delete(l.waiting, 0, 1)
		close(next)
		ls.mu.Unlock()
		return
	}
	delete(ls.m, l.key)
	stop := l.stopWatch
	l.forget()
	ls.spare = l
	ls.mu.Unlock()
	if stop != nil {
		stop()
	}
}
