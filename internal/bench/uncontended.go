package main

import (
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
	redislock "github.com/mortiselock/lock/redis"
)

// bareRelease is the compare-and-delete script of the Redis page on distributed
// locks.
var bareRelease = goredis.NewScript(`if redis.call("get",KEYS[1]) == ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end`)

// uncontended compares acquire and release of a free key by one goroutine with
// the bare commands.
func (b *bench) uncontended() error {
	const roundLength = 700 * time.Millisecond
	client := b.client()
	defer client.Close()
	locker, err := redislock.New(b.ctx, client, nil)
	if err != nil {
		return err
	}
	defer locker.Close()
	id := backend.NewID().Hex()
	sides := []struct {
		name string
		once func() error
		rate []float64
	}{
		{name: "SET NX PX + compare-and-delete", once: func() error {
			ok, err := client.SetNX(b.ctx, "bare", id, 15*time.Second).Result()
			if err == nil && !ok {
				err = fmt.Errorf("the bare key was held")
			}
			if err != nil {
				return err
			}
			return bareRelease.Run(b.ctx, client, []string{"bare"}, id).Err()
		}},
		{name: "Locker.TryAcquire + Release", once: func() error {
			l, err := locker.TryAcquire(b.ctx, "ours")
			if err != nil {
				return err
			}
			return l.Release(b.ctx)
		}},
		{name: "Locker.Acquire + Release", once: func() error {
			l, err := locker.Acquire(b.ctx, "ours")
			if err != nil {
				return err
			}
			return l.Release(b.ctx)
		}},
	}
	for round := -1; round < b.rounds; round++ { // the first one warms up
		for i := range sides {
			n, start := 0, time.Now()
			for time.Since(start) < roundLength {
				if err := sides[i].once(); err != nil {
					return err
				}
				n++
			}
			if round >= 0 {
				sides[i].rate = append(sides[i].rate, float64(n)/time.Since(start).Seconds())
			}
		}
	}
	for _, s := range sides {
		ratios := make([]float64, len(s.rate))
		for i := range s.rate {
			ratios[i] = s.rate[i] / sides[0].rate[i]
		}
		lo, hi := spread(ratios)
		fmt.Printf("  %-32s %8.0f pairs/s   ratio to bare %.2f (%.2f to %.2f)\n", s.name, median(s.rate), median(ratios), lo, hi)
	}
	return nil
}
