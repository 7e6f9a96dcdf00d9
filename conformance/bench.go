package conformance

import (
	"context"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance/internal/engine"
	"github.com/mortiselock/lock/conformance/internal/measure"
	"github.com/mortiselock/lock/conformance/internal/rules"
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
	m := measure.Measurer{Settings: s}
	for _, x := range []struct {
		name string
		run  func(loop func() bool) ([]measure.Metric, error)
	}{
		{"serial", m.Serial},
		{"parallel", m.Parallel},
		{"contended", m.Contended},
		{"held", m.Held},
	} {
		b.Run(x.name, func(b B) {
			b.Helper()
			metrics, err := x.run(b.Loop)
			if err != nil {
				b.Fatalf("conformance: %s: %v", x.name, err)
				return
			}
			for _, r := range metrics {
				b.ReportMetric(r.Value, r.Unit)
			}
		})
	}
}
