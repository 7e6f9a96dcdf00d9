package conformance

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
)

// TestingB is what Bench needs of a benchmark. *testing.B has it; B is the type
// itself.
type TestingB[B any] interface {
	Helper()
	Fatalf(format string, args ...any)
	Run(name string, f func(B)) bool
	Loop() bool
	ReportMetric(n float64, unit string)
}

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

// Bench measures the lock and makes one sub-benchmark of each measurement, so that
// go test -bench selects them:
//
//	func BenchmarkLocker(b *testing.B) {
//		conformance.Bench(b, conformance.Config{
//			OpenBackend: func(ctx context.Context) (backend.Backend, error) {
//				return mylock.New(ctx, "localhost:1234")
//			},
//		})
//	}
//
// Four measurements are made.
//
// serial: one goroutine acquires and releases a free key. ns/op is one pair.
//
// parallel: 16 goroutines of one Locker do so, each with a key of its own. ns/op is
// the elapsed time divided by the pairs of all of them.
//
// contended: 4 Lockers with 8 goroutines each compete for one key, which each holds
// for 1 ms at a time. in-use-% is for what part of the time the key was held by a
// caller, and ns/op the time from one grant to the next. The waits are measured in
// fair shares: one share is the time in which each of the 32 has had its turn once,
// so that a queue without overtaking has p50-fair-shares and p99-fair-shares close
// to 1, and a lock that starves somebody has a large p99-fair-shares.
//
// held: one Locker holds up to 10,000 keys at once (a slow lock fewer: as many as it
// grants within a sixth of the TTL, so that it can renew them), for one and a half
// TTLs, so that all of them are renewed. B/lease is the memory that stays in use after a
// garbage collection, goroutines how many more there were at most than before,
// leases how many keys were held, and lost-leases how many leases ended although
// nobody released them, which should be zero. A lock whose store is in this process
// pays for its records in B/lease too. With less than a few thousand leases B/lease is
// rough, since it is a difference of all that the program has in memory. ns/op has no
// meaning and is left out.
//
// Of the Config, Bench uses Open, OpenBackend (wrapped with lock.New, unless Open is
// given too), Guarantees, TTL, Budget and KeyPrefix. Budget bounds the length of a
// round of contended (a twentieth, at most 3 s) and the TTL of what held holds (a
// tenth, at most 6 s, at least Config.TTL). -benchtime 1x makes one round of each.
//
// An error of the lock ends the measurement with Fatalf. Figures of a shared machine
// say little by themselves: compare two locks in one run.
func Bench[B TestingB[B]](b B, cfg Config) {
	b.Helper()
	if cfg.Kill == nil {
		cfg.Kill = func(lock.Locker) {} // nothing is abandoned here, so the hook need not be there
	}
	cfg.Only = nil
	s, err := prepare(context.Background(), cfg, allRules)
	if err != nil {
		b.Fatalf("%v", err)
		return
	}
	m := &measurer{s}
	for _, x := range []struct {
		name string
		run  func(loop func() bool) ([]metric, error)
	}{
		{"serial", m.serial},
		{"parallel", m.parallel},
		{"contended", m.contended},
		{"held", m.held},
	} {
		b.Run(x.name, func(b B) {
			b.Helper()
			metrics, err := x.run(b.Loop)
			if err != nil {
				b.Fatalf("conformance: %s: %v", x.name, err)
				return
			}
			for _, r := range metrics {
				b.ReportMetric(r.value, r.unit)
			}
		})
	}
}

// metric is a figure. One of ns/op replaces that of the benchmark, and zero leaves it
// out.
type metric struct {
	value float64
	unit  string
}

// measurer makes the measurements. Each of them runs for as long as loop returns true.
type measurer struct{ *settings }

// open opens a Locker, and returns what closes it.
func (m *measurer) open() (lock.Locker, func(), error) {
	ctx, cancel := context.WithTimeout(context.Background(), openLimit)
	defer cancel()
	l, err := m.openLocker(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("opening a client: %w", err)
	}
	return l, func() { _ = l.Close() }, nil
}

// lasting are the options of leases that should not expire: a fixed TTL needs none.
func (m *measurer) lasting(ttl time.Duration) []lock.Option {
	if m.fixed {
		return nil
	}
	return []lock.Option{lock.WithTTL(ttl)}
}

func (m *measurer) serial(loop func() bool) ([]metric, error) {
	l, closeIt, err := m.open()
	if err != nil {
		return nil, err
	}
	defer closeIt()
	ctx, key, opts := context.Background(), m.keySpace+"serial", m.lasting(m.long)
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

func (m *measurer) parallel(loop func() bool) ([]metric, error) {
	l, closeIt, err := m.open()
	if err != nil {
		return nil, err
	}
	defer closeIt()
	turns := make(chan struct{})
	w := newWorkers()
	for i := range benchWorkers {
		key, opts := fmt.Sprintf("%sparallel/%d", m.keySpace, i), m.lasting(m.long)
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

func (m *measurer) contended(loop func() bool) ([]metric, error) {
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
	return []metric{
		{100 * seen.used.Seconds() / seen.wall.Seconds(), "in-use-%"},
		{at(0.5), "p50-fair-shares"},
		{at(0.99), "p99-fair-shares"},
		{perGrant * 1e9, "ns/op"},
	}, nil
}

// contend has everybody compete for a while. Grants after its end are not counted.
func (m *measurer) contend(lockers []lock.Locker, length time.Duration, seen *contention) error {
	key, opts := m.keySpace+"contended", m.lasting(m.long)
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

func (m *measurer) held(loop func() bool) ([]metric, error) {
	l, closeIt, err := m.open()
	if err != nil {
		return nil, err
	}
	defer closeIt()
	ttl := m.ttl
	if !m.fixed {
		ttl = m.fit(min(max(m.Budget/10, m.ttl), benchTTL))
	}
	keys := make([]string, benchLeases)
	for i := range keys {
		keys[i] = fmt.Sprintf("%sheld/%d", m.keySpace, i)
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
	return []metric{
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
