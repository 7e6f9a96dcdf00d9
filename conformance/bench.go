package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance/internal/engine"
	"github.com/mortiselock/lock/conformance/internal/rules"
	"github.com/mortiselock/lock/internal/measure"
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
	s, err := engine.Prepare(context.Background(), cfg.engine(), rules.All)
	if err != nil {
		b.Fatalf("%v", err)
		return
	}
	m := measurer{s}
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

// How much is measured at a time.
const (
	benchWorkers = 16 // goroutines of parallel

	// The setting of contended.
	benchLockers    = 4
	benchGoroutines = 8
	benchHeldFor    = time.Millisecond

	benchLeases = 10_000 // of held, at most
	benchTTL    = 6 * time.Second
)

// metric is a figure. One of ns/op replaces that of the benchmark, and zero leaves it
// out.
type metric struct {
	value float64
	unit  string
}

// measurer makes the measurements. Each of them runs for as long as loop returns true.
type measurer struct{ *engine.Settings }

// open opens a Locker, and returns what closes it.
func (m measurer) open() (lock.Locker, func(), error) {
	ctx, cancel := context.WithTimeout(context.Background(), engine.OpenLimit)
	defer cancel()
	l, err := m.OpenLocker(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("opening a client: %w", err)
	}
	return l, func() { _ = l.Close() }, nil
}

// lasting are the options of leases that should not expire: a fixed TTL needs none.
func (m measurer) lasting(ttl time.Duration) []lock.Option {
	if m.Fixed {
		return nil
	}
	return []lock.Option{lock.WithTTL(ttl)}
}

func (m measurer) serial(loop func() bool) ([]metric, error) {
	return nil, m.together(loop, m.KeySpace+"serial")
}

func (m measurer) parallel(loop func() bool) ([]metric, error) {
	keys := make([]string, benchWorkers)
	for i := range keys {
		keys[i] = fmt.Sprintf("%sparallel/%d", m.KeySpace, i)
	}
	return nil, m.together(loop, keys...)
}

// together has a goroutine for each key acquire and release it, all with one Locker.
func (m measurer) together(loop func() bool, keys ...string) error {
	l, closeIt, err := m.open()
	if err != nil {
		return err
	}
	defer closeIt()
	takers := make([]measure.Taker, len(keys))
	for i, key := range keys {
		takers[i] = measure.Taking(l.Acquire, key, m.lasting(m.Long)...)
	}
	_, _, err = measure.Together(context.Background(), measure.Serially(loop), takers...)
	return err
}

func (m measurer) contended(loop func() bool) ([]metric, error) {
	var takers []measure.Taker
	for range benchLockers {
		l, closeIt, err := m.open()
		if err != nil {
			return nil, err
		}
		defer closeIt()
		for range benchGoroutines {
			takers = append(takers, measure.Taking(l.Acquire, m.KeySpace+"contended", m.lasting(m.Long)...))
		}
	}
	contest := measure.Contest{HeldFor: benchHeldFor, Length: min(max(m.Budget/20, 100*time.Millisecond), 3*time.Second)}
	var seen measure.Contention
	for loop() {
		round, err := contest.Run(context.Background(), takers)
		if err != nil {
			return nil, err
		}
		seen.Add(round)
	}
	if seen.Grants == 0 {
		return nil, errors.New("nobody was granted the key")
	}
	return []metric{
		{100 * seen.InUse(), "in-use-%"},
		{seen.Wait(0.5, len(takers)), "p50-fair-shares"},
		{seen.Wait(0.99, len(takers)), "p99-fair-shares"},
		{1e9 / seen.GrantsPerSecond(), "ns/op"},
	}, nil
}

func (m measurer) held(loop func() bool) ([]metric, error) {
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
	seen, err := measure.Hoard{
		Keys: keys, HeldFor: 3 * ttl / 2,
		Within: ttl / 6, // what takes longer to acquire could not be renewed in time either
		Take: func(ctx context.Context, key string) (measure.Lease, error) {
			return l.TryAcquire(ctx, key, m.lasting(ttl)...)
		},
	}.Run(context.Background(), loop)
	if err != nil {
		return nil, err
	}
	return []metric{
		{seen.Bytes, "B/lease"},
		{float64(seen.Goroutines), "goroutines"},
		{float64(seen.Leases), "leases"},
		{float64(seen.Lost), "lost-leases"},
		{0, "ns/op"},
	}, nil
}
