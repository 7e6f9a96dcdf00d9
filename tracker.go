package lock

import (
	"sync"
	"time"
)

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

// pool runs functions on at most limit goroutines, which end when there is
// nothing to do. A function that hangs does not count after a while, so that
// requests to a part of the server that does not answer cannot keep others waiting.
type pool struct {
	limit int

	mu      sync.Mutex
	queue   []func()
	running int // goroutines that count
}

// poolPatience is how long a function of a pool counts against its limit.
const poolPatience = 250 * time.Millisecond

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
	for f != nil {
		hangs := time.AfterFunc(poolPatience, func() {
			if next := p.next(); next != nil {
				p.work(next)
			}
		})
		f()
		if !hangs.Stop() {
			return // another goroutine has taken the place
		}
		f = p.next()
	}
}

// next takes a function from the queue, for a goroutine that has a place. Without
// one the place is given up.
func (p *pool) next() func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		p.queue = nil
		p.running--
		return nil
	}
	f := p.queue[0]
	p.queue[0] = nil
	p.queue = p.queue[1:]
	return f
}
