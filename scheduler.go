package lock

import (
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
)

// scheduler calls whatever is due, for all leases of a Locker, from one timer: their
// renewals, and the clean-ups. Their ends are expiries' business.
// It never does I/O: what a due entry wants done is collected while the mutex is
// held and carried out afterwards. Without entries there is no timer and no goroutine.
type scheduler struct {
	clock backend.Clock

	mu      sync.Mutex
	entries timeline[entry]
	timer   *time.Timer
	armed   backend.Instant // when the timer fires, or never
	stopped bool

	// before is called before anything that is due, which waits while it returns false.
	before func() bool
	// along is called with the mutex held when everything that is due was called, and
	// may add to what it wants done.
	along func(now backend.Instant)
}

// entry is something that has to happen at an instant.
type entry interface {
	// place is the entry's place in the timeline. The scheduler's mutex guards it.
	place() *int32
	// due is called with the scheduler's mutex held when the entry's instant has
	// come. It returns the next, or never to leave the scheduler, and what to do once
	// the mutex is free, or nil.
	due(now backend.Instant) (next backend.Instant, todo func())
}

// maxSleep bounds one sleep. The runtime's timers stand still while the machine is
// suspended; waking up now and then finds the deadlines that passed meanwhile.
const maxSleep = time.Second

// dueAtOnce bounds for how many entries the mutex is kept.
const dueAtOnce = 1024

func newScheduler(clock backend.Clock) *scheduler { return &scheduler{clock: clock, armed: never} }

// set moves the entry to its instant, adds it, or takes it out when that is never.
// The mutex is held.
func (s *scheduler) set(e entry, at backend.Instant) {
	if s.stopped {
		at = never
	}
	s.entries.set(e, e.place(), at)
	if at < s.armed {
		s.arm(s.clock.Now())
	}
}

// arm sets the timer for the first entry. The mutex is held. A timer that fires
// too early is harmless, so removals do not touch it.
func (s *scheduler) arm(now backend.Instant) {
	first := s.entries.first()
	if first == never || s.stopped {
		s.armed = never
		return
	}
	sleep := min(max(first.Sub(now), 0), maxSleep)
	s.armed = now.Add(sleep)
	if s.timer == nil {
		s.timer = time.AfterFunc(sleep, s.run)
		return
	}
	s.timer.Reset(sleep)
}

// run is the timer's goroutine.
func (s *scheduler) run() {
	ready := s.before == nil || s.before()
	var todo []func()
	s.mu.Lock()
	if !ready {
		if !s.stopped {
			s.timer.Reset(time.Millisecond)
		}
		s.mu.Unlock()
		return
	}
	now := s.clock.Now()
	for n := 0; s.entries.first() <= now && n < dueAtOnce; n++ {
		e := s.entries.pop()
		next, f := e.due(now)
		if f != nil {
			todo = append(todo, f)
		}
		s.entries.set(e, e.place(), next)
	}
	if s.along != nil {
		s.along(now)
	}
	s.arm(now)
	s.mu.Unlock()
	for _, f := range todo {
		f()
	}
}

// stopIf ends the timer for good and drops the entries that are left, if the
// condition holds while the mutex is held.
func (s *scheduler) stopIf(condition func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !condition() {
		return false
	}
	s.stopped = true
	if s.timer != nil {
		s.timer.Stop()
	}
	for s.entries.first() != never {
		s.entries.pop()
	}
	return true
}
