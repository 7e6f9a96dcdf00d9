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

// follow counts work that a counted call, or Close itself, leaves behind.
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

// pool runs functions on at most limit goroutines, which end when there is
// nothing to do.
type pool struct {
	limit int

	mu      sync.Mutex
	queue   []func()
	running int
}

func (p *pool) run(f func()) {
	p.mu.Lock()
	if p.running >= p.limit {
		p.queue = append(p.queue, f)
		p.mu.Unlock()
		return
	}
	p.running++
	p.mu.Unlock()
	go p.work(f)
}

func (p *pool) work(f func()) {
	for {
		f()
		p.mu.Lock()
		if len(p.queue) == 0 {
			p.queue = nil
			p.running--
			p.mu.Unlock()
			return
		}
		f = p.queue[0]
		p.queue[0] = nil
		p.queue = p.queue[1:]
		p.mu.Unlock()
	}
}
