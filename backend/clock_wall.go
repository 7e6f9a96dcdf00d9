package backend

import (
	"sync"
	"time"
)

// wallLeaps makes a clock that counts suspend from a monotonic clock, which stops
// in suspend, and the wall clock, which does not but can be set. Every leap of the
// wall clock ahead of the monotonic one counts as suspend and is never taken back,
// so that a lease which began after the leap is not lengthened when the wall clock
// is set right.
type wallLeaps struct {
	mu    sync.Mutex
	ahead time.Duration // of the wall clock, since it was last set back or leapt
	slept time.Duration // all leaps so far
}

// leastLeap tells a leap from the grain of the wall clock and from its slewing.
const leastLeap = 100 * time.Millisecond

// now reads both clocks, as times since one common start.
func (w *wallLeaps) now(read func() (mono, wall time.Duration)) Instant {
	w.mu.Lock()
	defer w.mu.Unlock()
	mono, wall := read()
	switch leap := wall - mono - w.ahead; {
	case leap >= leastLeap:
		w.slept += leap
		w.ahead += leap
	case leap < 0:
		w.ahead += leap
	}
	return Instant(mono + w.slept)
}
