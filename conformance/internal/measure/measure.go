// Package measure makes the measurements of conformance.Bench, which explains them.
package measure

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// How much is measured at a time.
const (
	benchWorkers = 16 // goroutines of parallel and held

	// The setting of contended: as many Lockers with as many goroutines each, and
	// how long each grant is held.
	benchLockers    = 4
	benchGoroutines = 8
	benchHeldFor    = time.Millisecond

	benchLeases = 10_000 // of held, at most
	benchTTL    = 6 * time.Second
)

// Metric is a figure. One of ns/op replaces that of the benchmark, and zero leaves it
// out.
type Metric struct {
	Value float64
	Unit  string
}

// Measurer makes the measurements. Each of them runs for as long as loop returns true.
type Measurer struct{ *engine.Settings }

// open opens a Locker, and returns what closes it.
func (m *Measurer) open() (lock.Locker, func(), error) {
	ctx, cancel := context.WithTimeout(context.Background(), engine.OpenLimit)
	defer cancel()
	l, err := m.OpenLocker(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("opening a client: %w", err)
	}
	return l, func() { _ = l.Close() }, nil
}

// lasting are the options of leases that should not expire: a fixed TTL needs none.
func (m *Measurer) lasting(ttl time.Duration) []lock.Option {
	if m.Fixed {
		return nil
	}
	return []lock.Option{lock.WithTTL(ttl)}
}

// Serial has one goroutine acquire and release a free key.
func (m *Measurer) Serial(loop func() bool) ([]Metric, error) {
	l, closeIt, err := m.open()
	if err != nil {
		return nil, err
	}
	defer closeIt()
	ctx, key, opts := context.Background(), m.KeySpace+"serial", m.lasting(m.Long)
	for loop() {
		if err := pair(ctx, l, key, opts); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// pair acquires and releases a key.
func pair(ctx context.Context, l lock.Locker, key string, opts []lock.Option) error {
	lease, err := l.Acquire(ctx, key, opts...)
	if err != nil {
		return fmt.Errorf("acquiring: %w", err)
	}
	if err := lease.Release(ctx); err != nil {
		return fmt.Errorf("releasing: %w", err)
	}
	return nil
}

// Parallel has many goroutines do so, each with a key of its own.
func (m *Measurer) Parallel(loop func() bool) ([]Metric, error) {
	l, closeIt, err := m.open()
	if err != nil {
		return nil, err
	}
	defer closeIt()
	turns := make(chan struct{})
	w := newWorkers()
	for i := range benchWorkers {
		key, opts := fmt.Sprintf("%sparallel/%d", m.KeySpace, i), m.lasting(m.Long)
		w.start(func(context.Context) error {
			for range turns {
				if err := pair(context.Background(), l, key, opts); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for loop() && w.ctx.Err() == nil {
		select {
		case turns <- struct{}{}:
		case <-w.ctx.Done():
		}
	}
	close(turns)
	return nil, w.wait()
}

// workers are goroutines of which the first error ends all.
type workers struct {
	ctx  context.Context
	fail context.CancelCauseFunc
	wg   sync.WaitGroup
}

func newWorkers() *workers {
	w := &workers{}
	w.ctx, w.fail = context.WithCancelCause(context.Background())
	return w
}

func (w *workers) start(f func(ctx context.Context) error) {
	w.wg.Go(func() {
		if err := f(w.ctx); err != nil {
			w.fail(err)
		}
	})
}

// wait returns the first error.
func (w *workers) wait() error {
	w.wg.Wait()
	err := context.Cause(w.ctx)
	w.fail(nil)
	return err
}

// contention is what was seen of one key that many wanted.
type contention struct {
	mu    sync.Mutex
	wall  time.Duration
	used  time.Duration
	waits []time.Duration
}

// Contended has several Lockers compete for one key.
func (m *Measurer) Contended(loop func() bool) ([]Metric, error) {
	lockers := make([]lock.Locker, benchLockers)
	for i := range lockers {
		l, closeIt, err := m.open()
		if err != nil {
			return nil, err
		}
		defer closeIt()
		lockers[i] = l
	}
	round := min(max(m.Budget/20, 100*time.Millisecond), 3*time.Second)
	var seen contention
	for loop() {
		if err := m.contend(lockers, round, &seen); err != nil {
			return nil, err
		}
	}
	if len(seen.waits) == 0 {
		return nil, errors.New("nobody was granted the key")
	}
	slices.Sort(seen.waits)
	perGrant := seen.wall.Seconds() / float64(len(seen.waits))
	share := perGrant * benchLockers * benchGoroutines
	at := func(q float64) float64 {
		return seen.waits[int(q*float64(len(seen.waits)-1))].Seconds() / share
	}
	return []Metric{
		{100 * seen.used.Seconds() / seen.wall.Seconds(), "in-use-%"},
		{at(0.5), "p50-fair-shares"},
		{at(0.99), "p99-fair-shares"},
		{perGrant * 1e9, "ns/op"},
	}, nil
}

// contend has everybody compete for a while. Grants after its end are not counted.
func (m *Measurer) contend(lockers []lock.Locker, length time.Duration, seen *contention) error {
	key, opts := m.KeySpace+"contended", m.lasting(m.Long)
	w := newWorkers()
	begin := time.Now()
	end := begin.Add(length)
	for _, l := range lockers {
		for range benchGoroutines {
			w.start(func(ctx context.Context) error {
				for time.Now().Before(end) {
					asked := time.Now()
					lease, err := l.Acquire(ctx, key, opts...)
					if err != nil {
						return fmt.Errorf("acquiring: %w", err)
					}
					granted := time.Now()
					time.Sleep(benchHeldFor)
					released := time.Now()
					if err := lease.Release(ctx); err != nil {
						return fmt.Errorf("releasing: %w", err)
					}
					if granted.Before(end) {
						seen.add(granted.Sub(asked), min(released.Sub(granted), end.Sub(granted)))
					}
				}
				return nil
			})
		}
	}
	err := w.wait()
	seen.wall += length
	return err
}

func (c *contention) add(waited, used time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waits = append(c.waits, waited)
	c.used += used
}

// Held has one Locker hold many keys at once.
func (m *Measurer) Held(loop func() bool) ([]Metric, error) {
	l, closeIt, err := m.open()
	if err != nil {
		return nil, err
	}
	defer closeIt()
	ttl := m.TTL
	if !m.Fixed {
		ttl = m.Fit(min(max(m.Budget/10, m.TTL), benchTTL))
	}
	keys := make([]string, benchLeases)
	for i := range keys {
		keys[i] = fmt.Sprintf("%sheld/%d", m.KeySpace, i)
	}
	leases := make([]lock.Lease, benchLeases)
	opts := m.lasting(ttl)
	heap, goroutines := heapInUse(), runtime.NumGoroutine()

	// What takes longer than this to acquire could not be renewed in time either.
	end := time.Now().Add(ttl / 6)
	err = eachOf(keys, func(ctx context.Context, i int) error {
		if i > 0 && !time.Now().Before(end) {
			return nil
		}
		lease, err := l.TryAcquire(ctx, keys[i], opts...)
		leases[i] = lease
		if err != nil {
			leases[i] = nil
			return fmt.Errorf("acquiring: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	most := runtime.NumGoroutine()
	for loop() {
		for until := time.Now().Add(3 * ttl / 2); time.Now().Before(until); {
			most = max(most, runtime.NumGoroutine())
			time.Sleep(5 * time.Millisecond)
		}
	}
	used := heapInUse() - heap
	runtime.KeepAlive(keys) // they were there before
	count, lost := 0, 0
	for _, lease := range leases {
		if lease == nil {
			continue
		}
		if count++; lease.Context().Err() != nil {
			lost++
		}
	}
	err = eachOf(leases, func(ctx context.Context, i int) error {
		if leases[i] == nil {
			return nil
		}
		err := leases[i].Release(ctx)
		if errors.Is(err, lock.ErrLost) {
			err = nil // counted
		}
		return err
	})
	return []Metric{
		{max(used, 0) / float64(count), "B/lease"},
		{float64(max(most-goroutines, 0)), "goroutines"},
		{float64(count), "leases"},
		{float64(lost), "lost-leases"},
		{0, "ns/op"},
	}, err
}

// eachOf calls f for each index of the list, on a number of goroutines.
func eachOf[T any](list []T, f func(ctx context.Context, i int) error) error {
	w := newWorkers()
	for first := range benchWorkers {
		w.start(func(ctx context.Context) error {
			for i := first; i < len(list) && ctx.Err() == nil; i += benchWorkers {
				if err := f(ctx, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return w.wait()
}

// heapInUse is what the program keeps in memory. It collects until that no longer
// falls: some things are found to be free by one collection and freed by the next, and
// some goroutines of before have yet to end.
func heapInUse() float64 {
	var s runtime.MemStats
	least := uint64(math.MaxUint64)
	for range 20 {
		runtime.GC()
		runtime.ReadMemStats(&s)
		if s.HeapAlloc >= least {
			break
		}
		least = s.HeapAlloc
		time.Sleep(5 * time.Millisecond)
	}
	return float64(least)
}
