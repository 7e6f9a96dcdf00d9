package lock

import "sync"

// tracker counts what is under way, so that Close can wait for it. Unlike
// sync.WaitGroup it refuses new calls once closed, and the wait can be bounded.
type tracker struct {
	mu     sync.Mutex
	n      int
	closed bool
	ended  chan struct{} // closed when n is zero after close
}

// add counts one more call, unless the tracker is closed.
func (t *tracker) add() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.n++
	return true
}

// follow counts work that a counted call, or Close itself, leaves behind. After
// close it is for those who are counted, and under the scheduler's mutex until the
// scheduler is stopped: that is what Close relies on.
func (t *tracker) follow() {
	t.mu.Lock()
	t.n++
	t.mu.Unlock()
}

// done ends one call or one piece of work.
func (t *tracker) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n--
	if t.n == 0 && t.ended != nil {
		close(t.ended)
		t.ended = nil
	}
}

func (t *tracker) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
}

// idle returns a channel that is closed when nothing is under way.
func (t *tracker) idle() <-chan struct{} {
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

// none reports whether nothing is under way.
func (t *tracker) none() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n == 0
}
