package otellock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/mortiselock/lock"
	memlock "github.com/mortiselock/lock/memory"
	otellock "github.com/mortiselock/lock/observe/otel"
)

// collect returns what a reader sees of each time series, "name{attribute=value,...}": its
// value, or how many values a histogram has.
func collect(reader sdkmetric.Reader) (map[string]int64, error) {
	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		return nil, err
	}
	seen := map[string]int64{}
	series := func(name string, of attribute.Set) string {
		return name + "{" + of.Encoded(attribute.DefaultEncoder()) + "}"
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					seen[series(m.Name, p.Attributes)] = p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					seen[series(m.Name, p.Attributes)] = int64(p.Count)
				}
			default:
				return nil, fmt.Errorf("%s is a %T", m.Name, data)
			}
		}
	}
	return seen, nil
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	l := exercise(t, &otellock.Options{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	seen, err := collect(reader)
	require.NoError(t, err)
	const of = "mortise.backend=memory,mortise.label=nightly"
	want := map[string]int64{
		"mortise.holders{" + of + "}":                                                             2,
		"mortise.waiters{" + of + "}":                                                             1,
		"mortise.acquisitions{" + of + ",mortise.outcome=granted}":                                6,
		"mortise.acquisitions{" + of + ",mortise.outcome=held}":                                   2,
		"mortise.acquisitions{" + of + ",mortise.outcome=unknown}":                                1,
		"mortise.wait.duration{" + of + ",mortise.outcome=granted}":                               1,
		"mortise.wait.duration{" + of + ",mortise.outcome=held}":                                  1,
		"mortise.hold.duration{" + of + "}":                                                       4,
		"mortise.renewal.duration{" + of + "}":                                                    1,
		"mortise.renewal.duration{error.type=_OTHER," + of + "}":                                  1,
		"mortise.renewal.duration{error.type=not_held," + of + "}":                                1,
		"mortise.losses{mortise.backend=memory,mortise.cause=taken_over,mortise.label=nightly}":   1,
		"mortise.losses{mortise.backend=memory,mortise.cause=expired,mortise.label=nightly}":      0,
		"mortise.losses{mortise.backend=memory,mortise.cause=session_lost,mortise.label=nightly}": 0,
		"mortise.losses{mortise.backend=memory,mortise.cause=max_hold,mortise.label=nightly}":     0,
		"mortise.releases{" + of + ",mortise.outcome=confirmed}":                                  2,
		"mortise.releases{" + of + ",mortise.outcome=unknown}":                                    1,
	}
	for series, n := range seen {
		if strings.HasPrefix(series, "mortise.attempt.duration{") { // how often a waiter asks is a matter of time
			assert.Positive(t, n)
			assert.Regexp(t, `\{(error.type=(held|unknown),)?`+of+`\}$`, series)
			delete(seen, series)
		}
	}
	assert.Equal(t, want, seen)

	require.NoError(t, l.Close())
	seen, err = collect(reader)
	require.NoError(t, err)
	assert.Zero(t, seen["mortise.holders{"+of+"}"])
	assert.Zero(t, seen["mortise.waiters{"+of+"}"])
	assert.Equal(t, int64(1), seen["mortise.acquisitions{"+of+",mortise.outcome=closed}"])
	assert.Equal(t, int64(2), seen["mortise.releases{"+of+",mortise.outcome=closed}"])
}

func TestKeysAreOptIn(t *testing.T) {
	t.Parallel()
	for _, keys := range []bool{false, true} {
		reader := sdkmetric.NewManualReader()
		l, _, _, _ := newClient(t, &otellock.Options{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), Keys: keys})
		for _, key := range []string{"a", "b"} {
			_, err := l.Acquire(t.Context(), key)
			require.NoError(t, err)
		}
		seen, err := collect(reader)
		require.NoError(t, err)
		each, both := int64(0), int64(2)
		if keys {
			each, both = 1, 0
		}
		assert.Equal(t, each, seen["mortise.holders{mortise.backend=memory,mortise.key=a}"])
		assert.Equal(t, each, seen["mortise.holders{mortise.backend=memory,mortise.key=b}"])
		assert.Equal(t, both, seen["mortise.holders{mortise.backend=memory}"])
	}
}

var aGauge = regexp.MustCompile(`^mortise\.(holders|waiters)\{.*\bmortise\.key=(key \d)`)

// compare takes random steps, with an observer that is told what pass lets through, until
// what is collected differs from what is so, and returns how.
func compare(t *testing.T, pass func(lock.Event) bool, steps int) (differ error) {
	synctest.Test(t, func(t *testing.T) {
		seed := rand.Uint64()
		rnd := rand.New(rand.NewPCG(seed, 0))
		reader := sdkmetric.NewManualReader()
		observe, err := otellock.NewObserver(&otellock.Options{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), Keys: true})
		require.NoError(t, err)
		store := memlock.NewStore(nil)
		l, err := memlock.New(t.Context(), &memlock.Options{Store: store, Lock: lock.Options{Observer: func(ctx context.Context, e lock.Event) {
			if pass(e) {
				observe(ctx, e)
			}
		}}})
		require.NoError(t, err)
		var mu sync.Mutex
		leases := map[lock.Lease]string{}
		waits := map[int]context.CancelFunc{}
		waitsOn := map[string]int64{}
		for step := range steps {
			key := fmt.Sprint("key ", rnd.IntN(3))
			mu.Lock()
			var lease lock.Lease
			for lease = range leases {
				break
			}
			var cancel context.CancelFunc
			for _, cancel = range waits {
				break
			}
			mu.Unlock()
			switch p := rnd.IntN(100); {
			case p < 40:
				ctx, cancel := context.WithCancel(t.Context())
				opts := []lock.Option{lock.WithLabel(fmt.Sprint("label ", rnd.IntN(2))), lock.WithMaxHold(time.Duration(1+rnd.IntN(60)) * time.Second)}
				mu.Lock()
				waits[step] = cancel
				waitsOn[key]++
				mu.Unlock()
				go func() {
					lease, err := l.Acquire(ctx, key, opts...)
					mu.Lock()
					defer mu.Unlock()
					delete(waits, step)
					waitsOn[key]--
					if err == nil {
						leases[lease] = key
					}
				}()
			case p < 60 && lease != nil:
				_ = lease.Release(t.Context())
				_ = lease.Release(t.Context())
			case p < 75 && cancel != nil:
				cancel()
			case p < 80:
				store.Remove(key)
			default:
				time.Sleep(time.Duration(rnd.IntN(8000)) * time.Millisecond)
			}
			synctest.Wait()
			seen, err := collect(reader)
			require.NoError(t, err)
			holders, waiters := map[string]int64{}, map[string]int64{}
			for series, n := range seen {
				if of := aGauge.FindStringSubmatch(series); of != nil && of[1] == "holders" {
					holders[of[2]] += n
				} else if of != nil {
					waiters[of[2]] += n
				}
			}
			mu.Lock()
			held := map[string]int64{}
			for lease, on := range leases {
				if lease.Context().Err() != nil {
					delete(leases, lease)
				} else {
					held[on]++
				}
			}
			for i := range 3 {
				key := fmt.Sprint("key ", i)
				if holders[key] != held[key] || waiters[key] != waitsOn[key] {
					differ = fmt.Errorf("seed %d, step %d, %s: %d holders and %d waiters, and %d hold and %d wait", seed, step, key, holders[key], waiters[key], held[key], waitsOn[key])
				}
			}
			mu.Unlock()
			if differ != nil {
				break
			}
		}
		require.NoError(t, l.Close())
		synctest.Wait()
	})
	return differ
}

// TestGaugesAreExact: at each step, by key; and the test notices when an event is missing.
func TestGaugesAreExact(t *testing.T) {
	t.Parallel()
	require.NoError(t, compare(t, func(lock.Event) bool { return true }, 600))
	for _, missing := range []lock.EventKind{lock.EventWaitBegun, lock.EventWaitEnded, lock.EventGranted, lock.EventLost, lock.EventReleased} {
		assert.Error(t, compare(t, func(e lock.Event) bool { return e.Kind != missing }, 600), missing.String())
	}
}
