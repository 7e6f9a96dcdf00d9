package call

import "sync"

// Tracker counts what is under way, so that Close can wait for it. Unlike
// sync.WaitGroup it refuses new calls once closed, and the wait can be bounded.
type Tracker struct {
	mu     sync.Mutex
	n      int
	closed bool
	ended  chan struct{} // closed when n is zero after close
}

// Add counts one more call, unless the tracker is closed.
func (t *Tracker) Add() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.n++
	return true
}

// Follow counts work that a counted call, or Close itself, leaves behind. After
// close it is for those who are counted, and under the scheduler's mutex until the
// scheduler is stopped: that is what Close relies on.
func (t *Tracker) Follow() {
	t.mu.Lock()
	t.n++
	t.mu.Unlock()
}

// Done ends one call or one piece of work.
func (t *Tracker) Done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n--
	if t.n == 0 && t.ended != nil {
		close(t.ended)
		t.ended = nil
	}
}

// Close has Add refuse from now on.
func (t *Tracker) Close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
}

// Idle returns a channel that is closed when nothing is under way.
func (t *Tracker) Idle() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	ch := make(chan struct{})
	if t.n == 0 {
		close(ch)
	} else {
		t.ended = ch
	}
	return ch
}

// None reports whether nothing is under way.
func (t *Tracker) None() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n == 0
}
