package hold

import (
	"slices"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/schedule"
)

// expiries ends the contexts of all leases of a Locker at their deadlines, from one
// timer and with a mutex of its own, under which nothing else happens: renewals,
// clean-ups and the calls of a busy Locker don't make it late. Whether a hold has
// expired is decided without a mutex, by the lease's own term.
type expiries struct {
	clock backend.Clock
	begin func()               // is called with the mutex held when leases end
	after func(ended []*Lease) // is called when all that is due has ended; it tells the server

	mu      sync.Mutex
	line    schedule.Timeline[*Lease]
	timer   *time.Timer
	armed   backend.Instant // when the timer fires, or never
	busy    bool            // run is under way, and will arm the timer
	ended   []*Lease        // of which the server is to be told
	telling bool            // tell is under way
}

const (
	// expireAtOnce is how many leases are looked for before their contexts end.
	expireAtOnce = 1024
	// expireTogether is how many contexts one goroutine ends: one that has very many
	// children makes no more than these late.
	expireTogether = 64
)

// add begins to watch the lease's term.
func (x *expiries) add(l *Lease) {
	x.mu.Lock()
	defer x.mu.Unlock()
	at, _ := l.term.read()
	x.line.Set(l, &l.expiry, at)
	if at < x.armed && !x.busy {
		x.arm()
	}
}

// remove ends the watch over a lease that has ended.
func (x *expiries) remove(l *Lease) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.line.Set(l, &l.expiry, never)
}

// all returns the leases that have not ended.
func (x *expiries) all() []*Lease {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.line.All()
}

// arm sets the timer for the first lease. The mutex is held.
func (x *expiries) arm() {
	x.armed = never
	if x.line.First() == never {
		return
	}
	now := x.clock.Now()
	sleep := min(max(x.line.First().Sub(now), 0), schedule.MaxSleep)
	x.armed = now.Add(sleep)
	if x.timer == nil {
		x.timer = time.AfterFunc(sleep, func() { x.run() })
		return
	}
	x.timer.Reset(sleep)
}

// run is the timer's goroutine. When every context that is due has ended, the server is
// told, on another goroutine, since that waits for the mutex of the scheduler. It
// returns false when another run is not yet through.
func (x *expiries) run() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.busy {
		return false
	}
	x.busy = true
	for due := x.due(); len(due) > 0; due = x.due() {
		x.ended = append(x.ended, due...)
		x.mu.Unlock()
		endAll(due)
		x.mu.Lock()
	}
	x.busy = false
	x.arm()
	if len(x.ended) > 0 && !x.telling {
		x.telling = true
		go x.tell()
	}
	return true
}

// due takes out leases whose terms are over. The mutex is held.
func (x *expiries) due() []*Lease {
	var due []*Lease
	now := x.clock.Now()
	for x.line.First() <= now && len(due) < expireAtOnce {
		l := x.line.Peek()
		switch at, over := l.term.read(); {
		case over:
			// Somebody else has found it over, and does the rest.
			x.line.Pop()
		case at > now:
			x.line.Set(l, &l.expiry, at) // it was renewed
		case l.term.end(at, now):
			x.line.Pop()
			x.begin()
			due = append(due, l)
		}
	}
	return due
}

// tell has the server told about leases whose contexts have ended, a few at a time,
// until there are contexts to end again, which come first.
func (x *expiries) tell() {
	for {
		x.mu.Lock()
		if len(x.ended) == 0 || x.busy || x.line.First() <= x.clock.Now() {
			x.telling = false
			if len(x.ended) == 0 {
				x.ended = nil
			}
			x.mu.Unlock()
			return
		}
		n := min(len(x.ended), expireTogether)
		some := x.ended[:n:n]
		x.ended = x.ended[n:]
		x.mu.Unlock()
		x.after(some)
	}
}

// endAll ends the contexts of leases whose terms are over.
func endAll(leases []*Lease) {
	if len(leases) <= expireTogether {
		for _, l := range leases {
			l.end.because(l.expired())
		}
		return
	}
	var all sync.WaitGroup
	for some := range slices.Chunk(leases, expireTogether) {
		all.Go(func() { endAll(some) })
	}
	all.Wait()
}
