package engine

import (
	"sync"
	"time"
)

// tasks are what runs beside the cases: clients that close, requests of their own. A case that was
// left to itself may still begin some while somebody waits for the end of all, which a
// [sync.WaitGroup] does not allow.
type tasks struct {
	mu      sync.Mutex
	running int
	none    chan struct{} // closed when nothing runs anymore; made by who waits
}

// Go runs f on its own.
func (t *tasks) Go(f func()) {
	t.mu.Lock()
	t.running++
	t.mu.Unlock()
	go func() {
		defer t.done()
		f()
	}()
}

func (t *tasks) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running--; t.running == 0 && t.none != nil {
		close(t.none)
		t.none = nil
	}
}

// wait waits until nothing runs, but not for longer than limit.
func (t *tasks) wait(limit time.Duration) {
	t.mu.Lock()
	if t.running == 0 {
		t.mu.Unlock()
		return
	}
	if t.none == nil {
		t.none = make(chan struct{})
	}
	none := t.none
	t.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-none:
	case <-timer.C:
	}
}
