package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/measure"
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
	var renewed atomic.Int64
	locker, err := redislock.New(b.ctx, client, &redislock.Options{Lock: lock.Options{TTL: ttl, Observer: func(_ context.Context, e lock.Event) {
		if e.Kind == lock.EventRenewed {
			renewed.Add(1)
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
	rounds := 0
	seen, err := measure.Hoard{
		Keys: keys, HeldFor: 3 * ttl / 2,
		Take: func(ctx context.Context, key string) (measure.Lease, error) { return locker.TryAcquire(ctx, key) },
	}.Run(b.ctx, func() bool { rounds++; return rounds == 1 })
	if err != nil {
		return err
	}
	fmt.Printf("  %d leases of %s: %.0f bytes of heap each, %d goroutines more than before at most, %d renewals, %d lost\n",
		seen.Leases, ttl, seen.Bytes, seen.Goroutines, renewed.Load(), seen.Lost)
	fmt.Printf("  all released in %s\n", seen.Releasing.Round(time.Millisecond))
	return nil
}
