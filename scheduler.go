package lock

import (
	"container/heap"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
)

// scheduler calls whatever is due, for all leases of a Locker, from one timer.
// It never does I/O: what a due entry wants done is collected while the mutex is
// held and carried out afterwards, so that a hanging server cannot delay the
// deadline of any lease. Without entries there is no timer and no goroutine.
type scheduler struct {
	clock backend.Clock

	mu      sync.Mutex
	entries entryHeap
	timer   *time.Timer
	armed   backend.Instant // when the timer fires, or never
	stopped bool
}

// entry is something that has to happen at an instant.
type entry interface {
	slot() *slot
	// due is called with the scheduler's mutex held when the entry's wake has
	// come. It sets the next wake, or never to leave the scheduler, and returns
	// what to do once the mutex is free, or nil.
	due(now backend.Instant) func()
}

// slot is the place of an entry in the scheduler. The scheduler's mutex guards it.
type slot struct {
	wake  backend.Instant
	index int // position in the heap plus one; zero: not in the heap
}

// maxSleep bounds one sleep. The runtime's timers stand still while the machine is
// suspended; waking up now and then finds the deadlines that passed meanwhile.
const maxSleep = time.Second

func newScheduler(clock backend.Clock) *scheduler { return &scheduler{clock: clock, armed: never} }

// set moves the entry to its wake, adds it, or takes it out when its wake is
// never. The mutex is held.
func (s *scheduler) set(e entry, wake backend.Instant) {
	sl := e.slot()
	sl.wake = wake
	switch {
	case wake == never || s.stopped:
		if sl.index > 0 {
			heap.Remove(&s.entries, sl.index-1)
		}
		return
	case sl.index > 0:
		heap.Fix(&s.entries, sl.index-1)
	default:
		heap.Push(&s.entries, e)
	}
	if wake < s.armed {
		s.arm(s.clock.Now())
	}
}

// arm sets the timer for the first entry. The mutex is held. A timer that fires
// too early is harmless, so removals do not touch it.
func (s *scheduler) arm(now backend.Instant) {
	if len(s.entries) == 0 || s.stopped {
		s.armed = never
		return
	}
	sleep := min(max(s.entries[0].slot().wake.Sub(now), 0), maxSleep)
	s.armed = now.Add(sleep)
	if s.timer == nil {
		s.timer = time.AfterFunc(sleep, s.run)
		return
	}
	s.timer.Reset(sleep)
}

// run is the timer's goroutine.
func (s *scheduler) run() {
	var todo []func()
	s.mu.Lock()
	now := s.clock.Now()
	for len(s.entries) > 0 && s.entries[0].slot().wake <= now {
		e := s.entries[0]
		if f := e.due(now); f != nil {
			todo = append(todo, f)
		}
		if sl := e.slot(); sl.wake == never {
			heap.Remove(&s.entries, sl.index-1)
		} else {
			heap.Fix(&s.entries, sl.index-1)
		}
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
	for _, e := range s.entries {
		e.slot().index = 0
	}
	s.entries = nil
	return true
}

// entryHeap is a heap of entries by wake, for container/heap.
type entryHeap []entry

func (h entryHeap) Len() int           { return len(h) }
func (h entryHeap) Less(i, j int) bool { return h[i].slot().wake < h[j].slot().wake }
func (h entryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].slot().index, h[j].slot().index = i+1, j+1
}
func (h *entryHeap) Push(x any) {
	e := x.(entry)
	*h = append(*h, e)
	e.slot().index = len(*h)
}
func (h *entryHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.slot().index = 0
	return e
}
