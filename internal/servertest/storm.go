package servertest

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Storm disturbs what goes through proxies, at random and without a pause: it
// freezes one direction or both, delays, cuts connections, and loses requests and
// replies. It ends at the test's cleanup at the latest.
type Storm struct {
	proxies []*TCPProxy
	patient time.Duration
	mu      sync.RWMutex // held for writing by Calm
	stop    chan struct{}
	once    sync.Once
	wg      sync.WaitGroup
}

// NewStorm begins a storm over the proxies. No disturbance lasts longer than
// patient. Which ones come is random; the seed is logged.
func NewStorm(t TB, patient time.Duration, proxies ...*TCPProxy) *Storm {
	t.Helper()
	s := &Storm{proxies: proxies, patient: patient, stop: make(chan struct{})}
	seed := rand.Uint64()
	t.Logf("servertest: storm with seed %d", seed)
	for i, p := range proxies {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		s.wg.Go(func() { s.blow(t, p, random) })
	}
	t.Cleanup(s.End)
	return s
}

// End returns when everything goes through again. It may be called twice.
func (s *Storm) End() {
	s.once.Do(func() { close(s.stop) })
	s.wg.Wait()
}

// Calm runs f while nothing is disturbed, nor what f asks for is lost on the way. An f that
// fails all the same was held up by the machine: this is logged, and it runs once more.
func (s *Storm) Calm(t TB, f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.proxies {
		p.Spare()
	}
	begun := time.Now()
	err := f()
	if err == nil {
		return nil
	}
	t.Logf("servertest: failed in the calm after %s, and is tried again: %v", time.Since(begun).Round(time.Millisecond), err)
	return f()
}

// sleep returns false when the storm is over.
func (s *Storm) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.stop:
		return false
	}
}

func (s *Storm) blow(t TB, p *TCPProxy, random *rand.Rand) {
	upTo := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d) + 1)) }
	for s.sleep(upTo(s.patient / 2)) {
		s.mu.RLock()
		s.gust(t, p, random.IntN(9), upTo(s.patient))
		s.mu.RUnlock()
	}
}

// gust is one disturbance, which is over when it returns.
func (s *Storm) gust(t TB, p *TCPProxy, which int, length time.Duration) {
	switch which {
	case 0, 1, 2:
		dirs := [][]Direction{{ToServer}, {ToClient}, nil}[which]
		p.Freeze(dirs...)
		s.sleep(length)
		p.Resume(dirs...)
	case 3:
		p.Delay(length / 10)
		s.sleep(length)
		p.Delay(0)
	case 4:
		p.Refuse()
		p.Cut()
		s.sleep(length)
		p.Accept(t)
	case 5:
		p.Cut()
	case 6:
		p.DropReplies(1, "")
	case 7:
		p.DropRequests(1, "")
	case 8:
		p.StallReplies(1, "")
		s.sleep(length)
		p.Cut()
	}
}
