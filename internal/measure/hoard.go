package measure

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"time"

	"github.com/mortiselock/lock/backend"
)

// A Hoard holds many keys at once and sees what that costs in memory and goroutines.
type Hoard struct {
	// Keys are taken by a number of goroutines, each with Take.
	Keys []string
	Take func(ctx context.Context, key string) (Lease, error)
	// Within is for how long keys are taken: one at least, and all if it is zero.
	Within time.Duration
	// HeldFor is for how long they are held at a time.
	HeldFor time.Duration
}

// Hoarded is what was seen of a Hoard.
type Hoarded struct {
	Leases     int
	Bytes      float64       // of heap that each lease has in use
	Goroutines int           // how many more there were at most than before
	Lost       int           // leases that ended although nobody gave them back
	Releasing  time.Duration // how long it took to give all of them back
}

// hoarders is how many goroutines take and give back.
const hoarders = 16

// Run takes the keys, holds them for as long as more returns true, and gives them back.
func (h Hoard) Run(ctx context.Context, more func() bool) (Hoarded, error) {
	leases := make([]Lease, len(h.Keys))
	heap, goroutines := heapInUse(), runtime.NumGoroutine()
	end := time.Now().Add(h.Within)
	err := eachOf(ctx, h.Keys, func(ctx context.Context, i int) error {
		if i > 0 && h.Within > 0 && !time.Now().Before(end) {
			return nil
		}
		lease, err := h.Take(ctx, h.Keys[i])
		if err != nil {
			return fmt.Errorf("acquiring: %w", err)
		}
		leases[i] = lease
		return nil
	})
	if err != nil {
		return Hoarded{}, err
	}
	most := runtime.NumGoroutine()
	for more() {
		for held := During(h.HeldFor); held(); {
			most = max(most, runtime.NumGoroutine())
			time.Sleep(5 * time.Millisecond)
		}
	}
	used := heapInUse() - heap
	runtime.KeepAlive(h.Keys) // they were there before
	seen := Hoarded{Goroutines: max(most-goroutines, 0)}
	for _, lease := range leases {
		if lease == nil {
			continue
		}
		if seen.Leases++; lease.Context().Err() != nil {
			seen.Lost++
		}
	}
	seen.Bytes = max(used, 0) / float64(seen.Leases)
	begun := time.Now()
	err = eachOf(ctx, leases, func(ctx context.Context, i int) error {
		if leases[i] == nil {
			return nil
		}
		err := leases[i].Release(ctx)
		if errors.Is(err, backend.ErrLost) {
			err = nil // counted
		}
		return err
	})
	seen.Releasing = time.Since(begun)
	return seen, err
}

// eachOf calls f for each index of the list, on a number of goroutines.
func eachOf[T any](ctx context.Context, list []T, f func(ctx context.Context, i int) error) error {
	w := newWorkers(ctx)
	for first := range hoarders {
		w.start(func(ctx context.Context) error {
			for i := first; i < len(list) && ctx.Err() == nil; i += hoarders {
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
