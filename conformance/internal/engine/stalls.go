package engine

import (
	"runtime/metrics"
	"slices"
	"sync"
	"time"
)

// stallMeter notices when this process does not get to run, as a whole (a timer
// that should fire every few milliseconds fires late) or in a goroutine (the
// runtime counts how long goroutines that could run had to wait for it). It tells
// a lock that is late from a machine that is.
type stallMeter struct {
	stop chan struct{}
	done chan struct{}

	mu     sync.Mutex
	stalls []stall
	sample []metrics.Sample // nil: nothing is late here
	counts []uint64         // of the runtime's histogram when it was read last
	stood  []stall          // those that the timer has seen: unlike the others, no two overlap
}

type stall struct {
	at     time.Time
	length time.Duration
}

const (
	stallTick  = 10 * time.Millisecond
	stallRead  = 200 * time.Millisecond
	stallNoted = 20 * time.Millisecond // shorter ones are normal
	bubbleYear = 2000                  // in which the clock of a bubble of testing/synctest begins
)

// virtual reports whether time passes only where everything waits.
func virtual() bool { return time.Now().UTC().Year() == bubbleYear }

func newStallMeter() *stallMeter {
	m := &stallMeter{stop: make(chan struct{}), done: make(chan struct{})}
	if virtual() { // where no time passes while anything can run
		close(m.done)
		return m
	}
	m.sample = []metrics.Sample{{Name: "/sched/latencies:seconds"}}
	m.latencies(time.Now())
	m.stalls = nil
	go m.run()
	return m
}

func (m *stallMeter) run() {
	defer close(m.done)
	t := time.NewTimer(stallTick)
	defer t.Stop()
	last, read := time.Now(), time.Now()
	for {
		select {
		case <-m.stop:
			return
		case <-t.C:
		}
		now := time.Now()
		if gap := now.Sub(last) - stallTick; gap >= stallNoted {
			m.mu.Lock()
			m.stalls = append(m.stalls, stall{now, gap})
			m.stood = append(m.stood, stall{now, gap})
			m.mu.Unlock()
		}
		if now.Sub(read) >= stallRead {
			m.mu.Lock()
			m.latencies(now)
			m.mu.Unlock()
			read = now
		}
		last = now
		t.Reset(stallTick)
	}
}

// latencies notes the longest wait of a goroutine since the last call. The mutex
// is held.
func (m *stallMeter) latencies(now time.Time) {
	if m.sample == nil {
		return
	}
	metrics.Read(m.sample)
	if m.sample[0].Value.Kind() != metrics.KindFloat64Histogram {
		return // this version of Go does not count it
	}
	h := m.sample[0].Value.Float64Histogram()
	longest := 0.0
	for i, n := range h.Counts {
		if i >= len(m.counts) || n != m.counts[i] {
			longest = max(longest, h.Buckets[i])
		}
	}
	m.counts = append(m.counts[:0], h.Counts...)
	if d := time.Duration(longest * float64(time.Second)); d >= stallNoted {
		m.stalls = append(m.stalls, stall{now, d})
	}
}

// close ends the meter.
func (m *stallMeter) close() {
	close(m.stop)
	<-m.done
}

// since is the longest that this process stood still after the given time.
func (m *stallMeter) since(t time.Time) (worst time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.latencies(time.Now())
	for _, s := range m.stalls {
		if s.at.After(t) {
			worst = max(worst, s.length)
		}
	}
	return worst
}

// during is for how long this process stood still in the time that ends now, one time with
// another: what takes several steps waits for its turn before each.
func (m *stallMeter) during(d time.Duration) (sum time.Duration) {
	from := time.Now().Add(-d)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range slices.Backward(m.stood) {
		if s.at.Before(from) {
			break
		}
		sum += min(s.length, s.at.Sub(from))
	}
	return sum
}
