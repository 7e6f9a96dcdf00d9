package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const hands = 64 // goroutines that acquire and release

// heldTTL leaves time to acquire and to renew so many keys.
func heldTTL(n int) time.Duration {
	switch {
	case n > 10_000:
		return ttl
	case n > 1000:
		return 6 * time.Second
	default:
		return 4 * time.Second
	}
}

// hold has one client hold many keys for a TTL, in which each is renewed a few times.
// There is one round: what is held is many already.
func (b *bench) hold(st *store, s *servers, sc *scenario) error {
	for _, size := range sc.sizes {
		for _, c := range st.in(sc) {
			if !c.takesPart(sc, size) {
				continue
			}
			at := cell{store: st.name, scenario: sc.name, size: size, contender: c.name}
			b.attempt(at, func(ctx context.Context) (seen, error) { return b.hoard(ctx, s, c, size) })
		}
	}
	return nil
}

func (b *bench) hoard(ctx context.Context, s *servers, c *contender, n int) (seen, error) {
	opened, err := c.open(s, purpose{goroutines: hands, ttl: heldTTL(n), renewed: true})
	if err != nil {
		return seen{}, err
	}
	defer opened.close()
	ctx, cancel := b.context(ctx)
	defer cancel()
	releases := make([]func() error, n)
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("held/%s/%d/%d", c.name, n, i)
	}
	take := func(i int) (err error) {
		releases[i], err = opened.acquire(ctx, keys[i])
		return err
	}
	giveBack := func(i int) error { return releases[i]() }
	// Connections and what else comes with the first use are not those of leases.
	if err := eachOf(min(n, hands), take); err != nil {
		return seen{}, err
	}
	if err := eachOf(min(n, hands), giveBack); err != nil {
		return seen{}, err
	}
	time.Sleep(settling)
	bytes, before := memoryInUse(), runtime.NumGoroutine()
	if err := eachOf(n, take); err != nil {
		return seen{}, err
	}
	f := unseen()
	time.Sleep(settling)
	f[goroutines] = float64(runtime.NumGoroutine() - before)
	if n > 1 { // of one alone nothing would be seen
		f[memory] = (memoryInUse() - bytes) / 1024 / float64(n)
		used := processorTime()
		time.Sleep(heldTTL(n))
		f[keeping] = float64((processorTime() - used).Microseconds()) / float64(n)
	}
	runtime.KeepAlive(keys) // they were there before
	return f, eachOf(n, giveBack)
}

// settling is for how long goroutines that are about to end may take to.
const settling = 200 * time.Millisecond

// eachOf calls f for each number below n, on some goroutines.
func eachOf(n int, f func(i int) error) error {
	var next atomic.Int64
	var first error
	var once sync.Once
	var all sync.WaitGroup
	for range hands {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := f(i); err != nil {
					once.Do(func() { first = err })
				}
			}
		})
	}
	all.Wait()
	return first
}

// memoryInUse is what heap and stacks hold after a collection. Some things are found to be
// free by one and freed by the next.
func memoryInUse() float64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse)
}
