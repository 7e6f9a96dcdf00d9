// Package schedule calls whatever is due, from one timer.
package schedule

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
)

// Scheduler calls whatever is due, for all leases of a Locker, from one timer: their
// renewals, and the clean-ups. Ends of leases are not among them: they have a timer of
// their own. It never does I/O: what a due entry wants done is collected while the mutex is
// held and carried out afterwards. Without entries there is no timer and no goroutine.
type Scheduler struct {
	clock backend.Clock

	sync.Mutex // guards the rest, and the entries
	entries    Timeline[Entry]
	timer      *time.Timer
	armed      backend.Instant // when the timer fires, or Never
	stopped    bool

	// Before is called before anything that is due, which waits while it returns false.
	Before func() bool
	// Along is called with the mutex held when everything that is due was called, and
	// may add to what it wants done.
	Along func(now backend.Instant)
}

// Entry is something that has to happen at an instant.
type Entry interface {
	// Place is the entry's place in the timeline. The Scheduler's mutex guards it.
	Place() *int32
	// Due is called with the Scheduler's mutex held when the entry's instant has
	// come. It returns the next, or Never to leave the Scheduler, and what to do once
	// the mutex is free, or nil.
	Due(now backend.Instant) (next backend.Instant, todo func())
}

// MaxSleep bounds one sleep. The runtime's timers stand still while the machine is
// suspended; waking up now and then finds the deadlines that passed meanwhile.
const MaxSleep = time.Second

// dueAtOnce bounds for how many entries the mutex is kept.
const dueAtOnce = 1024

// New returns a Scheduler on the clock.
func New(clock backend.Clock) *Scheduler { return &Scheduler{clock: clock, armed: Never} }

// Set moves the entry to its instant, adds it, or takes it out when that is Never.
// The mutex is held.
func (s *Scheduler) Set(e Entry, at backend.Instant) {
	if s.stopped {
		at = Never
	}
	s.entries.Set(e, e.Place(), at)
	if at < s.armed {
		s.arm(s.clock.Now())
	}
}

// Early calls take with entries that are due by an instant, in their order, until it has
// taken so many of them or left as many as skip: these stay where they are, the others move
// to the next instant that take returns. The mutex is held.
func (s *Scheduler) Early(by backend.Instant, most, skip int, take func(e Entry, at backend.Instant) (next backend.Instant, taken bool)) {
	var left []timed[Entry]
	for line := &s.entries; most > 0 && len(left) < skip && line.First() <= by; {
		x := line.items[0]
		line.Pop()
		next, taken := take(x.e, x.at)
		if !taken {
			left = append(left, x)
			continue
		}
		most--
		line.Set(x.e, x.place, next)
	}
	for _, x := range left {
		s.entries.Set(x.e, x.place, x.at)
	}
}

// Stopped reports whether the Scheduler has ended. The mutex is held.
func (s *Scheduler) Stopped() bool { return s.stopped }

// arm sets the timer for the first entry. The mutex is held. A timer that fires
// too early is harmless, so removals do not touch it.
func (s *Scheduler) arm(now backend.Instant) {
	first := s.entries.First()
	if first == Never || s.stopped {
		s.armed = Never
		return
	}
	sleep := min(max(first.Sub(now), 0), MaxSleep)
	s.armed = now.Add(sleep)
	if s.timer == nil {
		s.timer = time.AfterFunc(sleep, s.run)
		return
	}
	s.timer.Reset(sleep)
}

// run is the timer's goroutine.
func (s *Scheduler) run() {
	ready := s.Before == nil || s.Before()
	var todo []func()
	s.Lock()
	if !ready {
		if !s.stopped {
			s.timer.Reset(time.Millisecond)
		}
		s.Unlock()
		return
	}
	now := s.clock.Now()
	for n := 0; s.entries.First() <= now && n < dueAtOnce; n++ {
		e := s.entries.Pop()
		next, f := e.Due(now)
		if f != nil {
			todo = append(todo, f)
		}
		s.entries.Set(e, e.Place(), next)
	}
	if s.Along != nil {
		s.Along(now)
	}
	s.arm(now)
	s.Unlock()
	for _, f := range todo {
		f()
	}
}

// StopIf ends the timer for good and drops the entries that are left, if the
// condition holds while the mutex is held.
func (s *Scheduler) StopIf(condition func() bool) bool {
	s.Lock()
	defer s.Unlock()
	if !condition() {
		return false
	}
	s.stopped = true
	if s.timer != nil {
		s.timer.Stop()
	}
	for s.entries.First() != Never {
		s.entries.Pop()
	}
	return true
}

// Spread returns a random duration from d to d plus a quarter of it.
func Spread(d time.Duration) time.Duration {
	return d + time.Duration(rand.Float64()*float64(d)/4)
}
