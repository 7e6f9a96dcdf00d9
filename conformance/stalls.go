package conformance

import (
	"sync"
	"time"
)

// stallMeter notices when this process does not get to run: a timer that should
// fire every few milliseconds fires late. It tells a lock that is late from a
// machine that is.
type stallMeter struct {
	stop chan struct{}
	done chan struct{}

	mu     sync.Mutex
	stalls []stall
}

type stall struct {
	at     time.Time
	length time.Duration
}

const (
	stallTick  = 10 * time.Millisecond
	stallLeast = 50 * time.Millisecond  // may make a lease run out that should not
	stallLong  = 500 * time.Millisecond // may use up the slack of a control timer
)

func newStallMeter() *stallMeter {
	m := &stallMeter{stop: make(chan struct{}), done: make(chan struct{})}
	go m.run()
	return m
}

func (m *stallMeter) run() {
	defer close(m.done)
	t := time.NewTimer(stallTick)
	defer t.Stop()
	last := time.Now()
	for {
		select {
		case <-m.stop:
			return
		case <-t.C:
		}
		now := time.Now()
		if gap := now.Sub(last) - stallTick; gap >= stallLeast {
			m.mu.Lock()
			m.stalls = append(m.stalls, stall{now, gap})
			m.mu.Unlock()
		}
		last = now
		t.Reset(stallTick)
	}
}

// close ends the meter.
func (m *stallMeter) close() {
	close(m.stop)
	<-m.done
}

// worst is the longest stall since the given time, or zero when none was worth
// noticing.
func (m *stallMeter) worst(since time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	var d time.Duration
	for _, s := range m.stalls {
		if s.at.After(since) {
			d = max(d, s.length)
		}
	}
	return d
}
