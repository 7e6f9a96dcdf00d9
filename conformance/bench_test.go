package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	memlock "github.com/mortiselock/lock/memory"
)

func memoryConfig(queue bool, budget time.Duration) conformance.Config {
	store := memlock.NewStore(nil)
	return conformance.Config{
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return memlock.NewBackend(ctx, &memlock.Options{Store: store, Queue: queue})
		},
		TTL:    300 * time.Millisecond,
		Budget: budget,
	}
}

func BenchmarkMemory(b *testing.B) {
	for name, queue := range map[string]bool{"record": false, "queue": true} {
		b.Run(name, func(b *testing.B) { conformance.Bench(b, memoryConfig(queue, 20*time.Second)) })
	}
}

// oneRound is a benchmark of one round, as with -benchtime 1x, that a test can run.
type oneRound struct {
	name    string
	rounds  int
	metrics map[string]float64
	fatal   string
	subs    []*oneRound
}

func (b *oneRound) Helper() {}

func (b *oneRound) Loop() bool {
	b.rounds++
	return b.rounds == 1
}

func (b *oneRound) ReportMetric(n float64, unit string) {
	if b.metrics == nil {
		b.metrics = map[string]float64{}
	}
	b.metrics[unit] = n
}

func (b *oneRound) Fatalf(format string, args ...any) {
	b.fatal = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (b *oneRound) Run(name string, f func(*oneRound)) bool {
	sub := &oneRound{name: name}
	b.subs = append(b.subs, sub)
	sub.do(f)
	return sub.fatal == ""
}

func (b *oneRound) do(f func(*oneRound)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(b)
	}()
	<-done
}

func TestBenchMeasures(t *testing.T) {
	for name, queue := range map[string]bool{"record": false, "queue": true} {
		t.Run(name, func(t *testing.T) {
			b := &oneRound{}
			b.do(func(b *oneRound) { conformance.Bench(b, memoryConfig(queue, 2*time.Second)) })
			require.Empty(t, b.fatal)
			got := map[string]map[string]float64{}
			for _, sub := range b.subs {
				require.Empty(t, sub.fatal, sub.name)
				assert.Equal(t, 2, sub.rounds, "%s: the loop was run to its end", sub.name)
				got[sub.name] = sub.metrics
			}
			require.Len(t, got, 4)
			assert.Empty(t, got["serial"])
			assert.Empty(t, got["parallel"])

			c := got["contended"]
			require.Len(t, c, 4)
			assert.Greater(t, c["in-use-%"], 1.0)
			assert.LessOrEqual(t, c["in-use-%"], 100.0, "two held the key at a time")
			assert.Positive(t, c["p50-fair-shares"])
			assert.GreaterOrEqual(t, c["p99-fair-shares"], c["p50-fair-shares"])
			assert.Greater(t, c["ns/op"], 1e6, "it is held for 1 ms")

			h := got["held"]
			require.Len(t, h, 5)
			assert.Positive(t, h["leases"])
			assert.LessOrEqual(t, h["leases"], 10_000.0)
			assert.Greater(t, h["B/lease"], 100.0)
			assert.LessOrEqual(t, h["lost-leases"], h["leases"], "how many depends on the machine")
			assert.Zero(t, h["ns/op"])
		})
	}
}

// A lock that fails ends the measurement with what it said.
func TestBenchReportsErrors(t *testing.T) {
	refused := errors.New("the server has had enough")
	good := memoryConfig(false, time.Second)
	for name, cfg := range map[string]conformance.Config{
		"open": {
			Open: func(context.Context) (lock.Locker, error) { return nil, refused },
		},
		"acquire": {
			Open: func(ctx context.Context) (lock.Locker, error) {
				b, err := good.OpenBackend(ctx)
				if err != nil {
					return nil, err
				}
				l, err := lock.New(b, nil)
				return failingLocker{l, refused}, err
			},
		},
	} {
		b := &oneRound{}
		b.do(func(b *oneRound) { conformance.Bench(b, cfg) })
		if name == "open" {
			assert.Contains(t, b.fatal, refused.Error())
			continue
		}
		require.Empty(t, b.fatal)
		require.Len(t, b.subs, 4)
		for _, sub := range b.subs {
			assert.Contains(t, sub.fatal, sub.name+": acquiring: "+refused.Error())
			assert.Empty(t, sub.metrics)
		}
	}
}

// failingLocker fails every acquisition.
type failingLocker struct {
	lock.Locker
	err error
}

func (l failingLocker) Acquire(context.Context, string, ...lock.Option) (lock.Lease, error) {
	return nil, l.err
}
func (l failingLocker) TryAcquire(context.Context, string, ...lock.Option) (lock.Lease, error) {
	return nil, l.err
}
