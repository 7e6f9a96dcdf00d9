package memlock_test

import (
	"context"
	"testing"

	"github.com/mortiselock/lock"
	memlock "github.com/mortiselock/lock/backend/memory"
)

// acquire is Acquire or TryAcquire.
type acquire func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error)

// costs calls each with the ways to acquire a key that cost different things.
func costs[TB interface {
	testing.TB
	Run(name string, f func(TB)) bool
}](tb TB, each func(tb TB, ctx context.Context, take acquire)) {
	locker, err := memlock.New(context.Background(), &memlock.Options{Store: memlock.NewStore(nil)})
	if err != nil {
		tb.Fatal(err)
	}
	defer locker.Close()
	cancellable, cancel := context.WithCancel(context.Background())
	defer cancel()
	tb.Run("Acquire", func(tb TB) { each(tb, context.Background(), locker.Acquire) })
	tb.Run("TryAcquire", func(tb TB) { each(tb, context.Background(), locker.TryAcquire) })
	tb.Run("Acquire/cancellable", func(tb TB) { each(tb, cancellable, locker.Acquire) })
	tb.Run("TryAcquire/cancellable", func(tb TB) { each(tb, cancellable, locker.TryAcquire) })
}

func pair(tb testing.TB, ctx context.Context, take acquire) {
	lease, err := take(ctx, "key")
	if err == nil {
		err = lease.Release(ctx)
	}
	if err != nil {
		tb.Error(err)
	}
}

// BenchmarkUncontended is one acquisition of a free key and its release.
func BenchmarkUncontended(b *testing.B) {
	costs(b, func(b *testing.B, ctx context.Context, take acquire) {
		b.ReportAllocs()
		for b.Loop() {
			pair(b, ctx, take)
		}
	})
}

// BenchmarkContended is one acquisition and its release where eight goroutines compete, and
// beside it a mutex made of a channel.
func BenchmarkContended(b *testing.B) {
	contend := func(b *testing.B, once func()) {
		b.ReportAllocs()
		b.SetParallelism(4)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				once()
			}
		})
	}
	costs(b, func(b *testing.B, ctx context.Context, take acquire) {
		contend(b, func() {
			if lease, err := take(ctx, "key"); err == nil {
				_ = lease.Release(ctx)
			}
		})
	})
	b.Run("channel", func(b *testing.B) {
		mutex := make(chan struct{}, 1)
		contend(b, func() {
			mutex <- struct{}{}
			<-mutex
		})
	})
}
