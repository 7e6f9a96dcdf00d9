package call

import (
	"sync"
	"time"
)

// Pool runs functions that ask a server on a bounded number of goroutines, which end
// when there is nothing to do. The bound is one for each part of the server
// ([backend.Partitioner]), so that what hangs in one part keeps nothing of another
// waiting. Within a part a function that hangs gives its place up.
type Pool struct {
	Limit int // for each part
	// Urgent: what hangs gives one more place up with its own. However many hang, the
	// number of those that have begun doubles with every patience, until all have.
	Urgent bool

	mu    sync.Mutex
	parts map[string]*poolPart // those that have something to do
}

// poolPart is what is under way for one part of the server.
type poolPart struct {
	queue   []func()
	running int // goroutines that count
}

// Patience is how long a function of a Pool counts at most.
const Patience = 100 * time.Millisecond

// Run calls f on a goroutine for the part when there is a place. patience is after
// what time f is taken to hang.
func (p *Pool) Run(part string, patience time.Duration, f func()) {
	p.mu.Lock()
	pp := p.parts[part]
	if pp == nil {
		if p.parts == nil {
			p.parts = map[string]*poolPart{}
		}
		pp = &poolPart{}
		p.parts[part] = pp
	}
	if pp.running >= p.Limit {
		pp.queue = append(pp.queue, f)
		p.mu.Unlock()
		return
	}
	pp.running++
	p.mu.Unlock()
	go p.work(part, pp, patience, f)
}

// work calls f, and then others of the part, in a place of the part.
func (p *Pool) work(part string, pp *poolPart, patience time.Duration, f func()) {
	for f != nil {
		hangs := time.AfterFunc(patience, func() {
			if next := p.more(pp); next != nil {
				go p.work(part, pp, patience, next)
			}
			p.work(part, pp, patience, p.next(part, pp))
		})
		f()
		if !hangs.Stop() {
			return // another goroutine has taken the place
		}
		f = p.next(part, pp)
	}
}

// next takes a function from the queue of the part, for a goroutine that has a
// place. Without one the place is given up.
func (p *Pool) next(part string, pp *poolPart) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := pp.pop(); f != nil {
		return f
	}
	pp.running--
	if pp.running == 0 {
		delete(p.parts, part)
	}
	return nil
}

// more takes a function from the queue of the part together with a place.
func (p *Pool) more(pp *poolPart) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.Urgent {
		return nil
	}
	f := pp.pop()
	if f != nil {
		pp.running++
	}
	return f
}

// pop returns the function that has waited longest, or nil. The mutex is held.
func (pp *poolPart) pop() func() {
	if len(pp.queue) == 0 {
		pp.queue = nil
		return nil
	}
	f := pp.queue[0]
	pp.queue[0] = nil
	pp.queue = pp.queue[1:]
	return f
}
