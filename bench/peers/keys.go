package main

import (
	"context"
	"fmt"
	"os"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/mortiselock/lock/internal/measure"
	"github.com/mortiselock/lock/internal/servertest"
	redislock "github.com/mortiselock/lock/redis"
)

const (
	workers = 64
	keyTTL  = 15 * time.Second
)

// keys lets many goroutines of one process take keys of their own, on one server.
func keys(h *servertest.Program, rounds int) error {
	ctx := context.Background()
	server := servertest.Redis(h)
	client := func() *goredis.Client {
		c := goredis.NewClient(&goredis.Options{Addr: server.Addr(), Password: server.Password(), PoolSize: workers})
		h.Cleanup(func() { _ = c.Close() })
		return c
	}
	ours, err := redislock.New(ctx, client(), nil)
	if err != nil {
		return err
	}
	h.Cleanup(func() { _ = ours.Close() })
	waiting, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{server.Addr()}, Password: server.Password()},
		KeyMajority:  1, KeyValidity: keyTTL, NoLoopTracking: true,
		// A request that is slower makes WithContext wait for a notification, which does
		// not come for a key of its own.
		TryNextAfter: time.Second,
	})
	if err != nil {
		return err
	}
	h.Cleanup(waiting.Close)
	obtaining, peer := bsm.New(client()), redsync.New(redsyncgoredis.NewPool(client()))
	mortise := &measure.Side{Name: "redis"}
	best := &measure.Side{Name: "the best of the others"}
	mortise.Against = []measure.Comparison{{To: best, Goal: measure.Goal{AtLeast: 1}}}
	sides := []*measure.Side{{Name: "redsync"}, {Name: "bsm/redislock"}, {Name: "rueidislock"}, mortise}
	ways := [][]measure.Taker{
		eachWorker("redsync", func(ctx context.Context, key string) (func() error, error) {
			m := peer.NewMutex(key, redsync.WithExpiry(keyTTL))
			return func() error { _, err := m.UnlockContext(ctx); return err }, m.TryLockContext(ctx)
		}),
		eachWorker("bsm", func(ctx context.Context, key string) (func() error, error) {
			l, err := obtaining.Obtain(ctx, key, keyTTL, nil)
			return func() error { return l.Release(ctx) }, err
		}),
		eachWorker("rueidis", func(ctx context.Context, key string) (func() error, error) {
			_, release, err := waiting.WithContext(ctx, key)
			return func() error { release(); return nil }, err
		}),
		eachWorker("mortise", func(ctx context.Context, key string) (func() error, error) {
			l, err := ours.TryAcquire(ctx, key)
			return func() error { return l.Release(ctx) }, err
		}),
	}
	err = measure.Rounds(rounds, func(counted bool) error {
		fastest := 0.0
		for i, side := range sides {
			pairs, took, err := measure.Together(ctx, measure.During(measure.Length), ways[i]...)
			if err != nil {
				return fmt.Errorf("%s: %w", side.Name, err)
			}
			rate := float64(pairs) / took.Seconds()
			if side != mortise {
				fastest = max(fastest, rate)
			}
			if counted {
				side.Figures = append(side.Figures, rate)
			}
		}
		if counted {
			best.Figures = append(best.Figures, fastest)
		}
		return nil
	})
	if err != nil {
		return err
	}
	measure.Print(os.Stdout, "%7.0f pairs/s", sides...)
	return nil
}

// eachWorker is a Taker for each worker, which takes a key of its own.
func eachWorker(name string, take func(ctx context.Context, key string) (func() error, error)) []measure.Taker {
	takers := make([]measure.Taker, workers)
	for i := range takers {
		key := fmt.Sprintf("%s:worker-%d", name, i)
		takers[i] = func(ctx context.Context) (func() error, error) { return take(ctx, key) }
	}
	return takers
}
