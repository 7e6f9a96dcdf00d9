package main

import (
	"context"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
	redislock "github.com/mortiselock/lock/redis"
)

// redlock compares acquire and release on five nodes, by one goroutine, with the bare
// commands sent to all of them at the same time; then it freezes a node.
func (b *bench) redlock() error {
	const nodes = 5
	var servers []*servertest.Server
	var clients []goredis.UniversalClient
	for range nodes {
		s := servertest.Redis(b.host, servertest.WithControl())
		c := goredis.NewClient(&goredis.Options{Addr: s.Addr(), Password: s.Password()})
		defer c.Close()
		servers, clients = append(servers, s), append(clients, c)
	}
	id := backend.NewID().Hex()
	sides := []*redlockSide{{name: "bare commands, all awaited", once: func() error {
		err := toAll(clients, func(c goredis.UniversalClient) error { return c.SetNX(b.ctx, "bare", id, 15*time.Second).Err() })
		if err != nil {
			return err
		}
		return toAll(clients, func(c goredis.UniversalClient) error { return bareRelease.Run(b.ctx, c, []string{"bare"}, id).Err() })
	}}}
	for _, tokens := range []bool{false, true} {
		l, err := redislock.NewRedlock(b.ctx, clients, &redislock.RedlockOptions{WithoutTokens: !tokens})
		if err != nil {
			return err
		}
		defer l.Close()
		key := fmt.Sprintf("tokens %v", tokens)
		sides = append(sides, &redlockSide{name: "redlock, " + key, once: func() error { return tryAndRelease(b.ctx, l, key) }})
	}
	if err := b.redlockRounds(sides); err != nil {
		return err
	}
	servers[0].Freeze(b.host)
	frozen := []*redlockSide{{name: sides[1].name, once: sides[1].once}, {name: sides[2].name, once: sides[2].once}}
	if err := b.redlockRounds(frozen); err != nil {
		return err
	}
	servers[0].Resume(b.host)
	for i, s := range append(sides, frozen...) {
		text := "to bare"
		base := sides[0].rate
		if i >= len(sides) {
			text = "with a frozen node, to the same without"
			base = sides[i-len(sides)+1].rate
		}
		ratios := make([]float64, len(s.rate))
		for r := range s.rate {
			ratios[r] = s.rate[r] / base[r]
		}
		lo, hi := spread(ratios)
		fmt.Printf("  %-32s %8.0f pairs/s   ratio %s %.2f (%.2f to %.2f)\n", s.name, median(s.rate), text, median(ratios), lo, hi)
	}
	return nil
}

type redlockSide struct {
	name string
	once func() error
	rate []float64
}

func (b *bench) redlockRounds(sides []*redlockSide) error {
	for round := -1; round < b.rounds; round++ { // the first one warms up
		for _, s := range sides {
			n, start := 0, time.Now()
			for time.Since(start) < 700*time.Millisecond {
				if err := s.once(); err != nil {
					return fmt.Errorf("%s: %w", s.name, err)
				}
				n++
			}
			if round >= 0 {
				s.rate = append(s.rate, float64(n)/time.Since(start).Seconds())
			}
		}
	}
	return nil
}

func tryAndRelease(ctx context.Context, l lock.Locker, key string) error {
	lease, err := l.TryAcquire(ctx, key)
	if err != nil {
		return err
	}
	return lease.Release(ctx)
}

// toAll runs f for each client at the same time and returns the first error.
func toAll(clients []goredis.UniversalClient, f func(goredis.UniversalClient) error) error {
	errs := make(chan error, len(clients))
	for _, c := range clients {
		go func() { errs <- f(c) }()
	}
	var first error
	for range clients {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}
