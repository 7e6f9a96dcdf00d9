package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
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
// What is held is many already: there is one round, unless contenders are compared.
func (b *bench) hold(st *store, s *servers, sc *scenario) error {
	for _, size := range sc.sizes {
		for round := range b.rounds {
			all := st.in(sc)
			for _, i := range rand.Perm(len(all)) {
				c := all[i]
				at := cell{store: st.name, scenario: sc.name, size: size, contender: c.name}
				if !c.takesPart(sc, size) || b.failed[at] != "" || round > 0 && !st.compared(at) {
					continue
				}
				b.attempt(at, func(ctx context.Context) (seen, error) { return b.hoard(ctx, s, c, size, round) })
			}
		}
	}
	return nil
}

// compared reports whether an aim is a ratio to the cell, or of it.
func (st *store) compared(at cell) bool {
	for _, c := range st.contenders {
		for _, a := range c.aims {
			if a.scenario == at.scenario && a.size == at.size && a.against != "" && (c.name == at.contender || a.against == at.contender) {
				return true
			}
		}
	}
	return false
}

func (b *bench) hoard(ctx context.Context, s *servers, c *contender, n, round int) (seen, error) {
	leases, numbers := make([]lock.Lease, n), make(map[string]int, n)
	var granted atomic.Int64 // how long before its deadline the first lease was granted
	before := openSockets()
	opened, err := c.open(s, purpose{
		goroutines: hands, ttl: heldTTL(n), renewed: true,
		kept: func(key string, l lock.Lease) {
			leases[numbers[key]] = l
			if until, ok := l.Deadline(); ok {
				granted.CompareAndSwap(0, int64(time.Until(until)))
			}
		},
	})
	if err != nil {
		return seen{}, err
	}
	defer opened.close()
	ctx, cancel := b.context(ctx)
	defer cancel()
	releases := make([]func() error, n)
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("held/%s/%d/%d/%d", c.name, n, round, i)
		numbers[keys[i]] = i
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
	bytes, running := memoryInUse(), runtime.NumGoroutine()
	if err := eachOf(n, take); err != nil {
		return seen{}, err
	}
	f := unseen()
	if c.kind == own && n > 1 {
		f[latest] = 0
	}
	time.Sleep(settling)
	f[goroutines] = float64(runtime.NumGoroutine() - running)
	f[sockets] = openSockets() - before
	if n > 1 { // of one alone nothing would be seen
		f[memory] = (memoryInUse() - bytes) / 1024 / float64(n)
		used := processorTime()
		const looks = 20
		for range looks {
			time.Sleep(heldTTL(n) / looks)
			if c.kind == own {
				before := processorTime()
				f[latest] = math.Max(f[latest], passed(leases, time.Duration(granted.Load()), heldTTL(n)))
				used += processorTime() - before
			}
		}
		f[keeping] = float64((processorTime() - used).Microseconds()) / float64(n)
	}
	runtime.KeepAlive(keys) // they were there before
	return f, eachOf(n, giveBack)
}

// passed is the largest part of its TTL that has passed since the last renewal of a lease,
// which moved its deadline as far away as the grant had it.
func passed(leases []lock.Lease, granted, ttl time.Duration) (most float64) {
	for _, l := range leases {
		if until, ok := l.Deadline(); ok {
			most = max(most, float64(granted-time.Until(until))/float64(ttl))
		}
	}
	return most
}

// openSockets is how many sockets this process has, or NaN where that can't be seen.
func openSockets() float64 {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return math.NaN()
	}
	n := 0.0
	for _, f := range files {
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
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
