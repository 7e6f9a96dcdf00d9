package memlock_test

import (
	"context"
	"iter"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/mortiselock/lock"
	memlock "github.com/mortiselock/lock/memory"
)

func newLocker(tb testing.TB) lock.Locker {
	locker, err := memlock.New(context.Background(), &memlock.Options{Store: memlock.NewStore(nil)})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { locker.Close() })
	return locker
}

// contexts are those that cost different things.
func contexts(tb testing.TB) iter.Seq2[string, context.Context] {
	cancellable, cancel := context.WithCancel(context.Background())
	tb.Cleanup(cancel)
	return func(yield func(string, context.Context) bool) {
		_ = yield("background", context.Background()) && yield("cancellable", cancellable)
	}
}

// uncontended calls each with what acquires and releases a free key.
func uncontended(tb testing.TB, each func(name string, pair func())) {
	locker := newLocker(tb)
	for kind, ctx := range contexts(tb) {
		pair := func(take func(context.Context, string, ...lock.Option) (lock.Lease, error)) func() {
			return func() {
				lease, err := take(ctx, "key")
				if err == nil {
					err = lease.Release(ctx)
				}
				if err != nil {
					tb.Error(err)
				}
			}
		}
		each("Acquire/"+kind, pair(locker.Acquire))
		each("TryAcquire/"+kind, pair(locker.TryAcquire))
	}
}

// What is allocated is the lease, the record, the call, and the context of the release
// where the caller's can be cancelled. The lane is that of the call before.
func TestUncontendedAllocatesLittle(t *testing.T) {
	uncontended(t, func(name string, pair func()) {
		assert.LessOrEqual(t, testing.AllocsPerRun(1000, pair), 4.0, name)
	})
}

// BenchmarkUncontended is one acquisition of a free key and its release.
func BenchmarkUncontended(b *testing.B) {
	uncontended(b, func(name string, pair func()) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				pair()
			}
		})
	})
}

// BenchmarkContended is one acquisition and its release where eight goroutines compete, each
// of which lets the others run while it holds the key. Beside it is a mutex made of a channel.
func BenchmarkContended(b *testing.B) {
	contend := func(b *testing.B, once func()) {
		b.ReportAllocs()
		b.SetParallelism(8 / runtime.GOMAXPROCS(0))
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				once()
			}
		})
	}
	locker := newLocker(b)
	for name, ctx := range contexts(b) {
		b.Run(name, func(b *testing.B) {
			contend(b, func() {
				lease, err := locker.Acquire(ctx, "key")
				if err != nil {
					b.Error(err)
					return
				}
				runtime.Gosched()
				_ = lease.Release(ctx)
			})
		})
	}
	b.Run("channel", func(b *testing.B) {
		mutex := make(chan struct{}, 1)
		contend(b, func() {
			mutex <- struct{}{}
			runtime.Gosched()
			<-mutex
		})
	})
}
