package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	redislock "github.com/mortiselock/lock/redis"
)

// leases holds many keys at once, lets all of them be renewed, and counts what
// that costs in memory and goroutines.
func (b *bench) leases() error {
	const (
		count = 10_000
		ttl   = 6 * time.Second
	)
	client := b.client()
	defer client.Close()
	var renewed, lost atomic.Int64
	locker, err := redislock.New(b.ctx, client, &redislock.Options{Lock: lock.Options{TTL: ttl, Observer: func(_ context.Context, e lock.Event) {
		switch {
		case e.Kind == lock.EventRenewal && e.Err == nil:
			renewed.Add(1)
		case e.Kind == lock.EventLoss:
			lost.Add(1)
		}
	}}})
	if err != nil {
		return err
	}
	defer locker.Close()
	keys := make([]string, count)
	for i := range keys {
		keys[i] = fmt.Sprintf("lease-%05d", i)
	}
	held := make([]lock.Lease, count)
	heap, goroutines := heapInUse(), runtime.NumGoroutine()
	var wg sync.WaitGroup
	errs := make(chan error, 16)
	for w := range 16 {
		wg.Go(func() {
			for i := w; i < count; i += 16 {
				l, err := locker.TryAcquire(b.ctx, keys[i])
				if err != nil {
					errs <- err
					return
				}
				held[i] = l
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
	}
	time.Sleep(3 * ttl / 2)
	perLease := (heapInUse() - heap) / count
	most := 0
	for range 200 {
		most = max(most, runtime.NumGoroutine())
		time.Sleep(5 * time.Millisecond)
	}
	fmt.Printf("  %d leases of %s: %.0f bytes of heap each, %d goroutines more than before at most, %d renewals, %d lost\n",
		count, ttl, perLease, most-goroutines, renewed.Load(), lost.Load())
	start := time.Now()
	for w := range 16 {
		wg.Go(func() {
			for i := w; i < count; i += 16 {
				if err := held[i].Release(b.ctx); err != nil {
					select {
					case errs <- err:
					default:
					}
				}
			}
		})
	}
	wg.Wait()
	fmt.Printf("  all released in %s\n", time.Since(start).Round(time.Millisecond))
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// heapInUse is the live heap after a collection.
func heapInUse() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}
