package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/mortiselock/lock/internal/bench/measure"
	"github.com/mortiselock/lock/internal/servertest"
	redislock "github.com/mortiselock/lock/redis"
)

const (
	workers = 64
	keyTTL  = 15 * time.Second
)

// worker takes the key of a worker and gives it back.
type worker func(ctx context.Context, key string) error

// keys lets many goroutines of one process take keys of their own, on one server.
func keys(h *measure.Host, rounds int) error {
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
	ways := []worker{
		func(ctx context.Context, key string) error {
			m := peer.NewMutex("redsync:"+key, redsync.WithExpiry(keyTTL))
			if err := m.TryLockContext(ctx); err != nil {
				return err
			}
			_, err := m.UnlockContext(ctx)
			return err
		},
		func(ctx context.Context, key string) error {
			l, err := obtaining.Obtain(ctx, "bsm:"+key, keyTTL, nil)
			if err != nil {
				return err
			}
			return l.Release(ctx)
		},
		func(ctx context.Context, key string) error {
			_, release, err := waiting.WithContext(ctx, key)
			if err == nil {
				release()
			}
			return err
		},
		func(ctx context.Context, key string) error {
			l, err := ours.TryAcquire(ctx, key)
			if err != nil {
				return err
			}
			return l.Release(ctx)
		},
	}
	err = measure.Rounds(rounds, func(counted bool) error {
		fastest := 0.0
		for i, side := range sides {
			rate, err := together(ctx, ways[i])
			if err != nil {
				return fmt.Errorf("%s: %w", side.Name, err)
			}
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

// together is the rate of all workers together.
func together(ctx context.Context, w worker) (float64, error) {
	var (
		wg    sync.WaitGroup
		pairs atomic.Int64
		mu    sync.Mutex
		fault error
	)
	start := time.Now()
	for i := range workers {
		key := fmt.Sprintf("worker-%d", i)
		wg.Go(func() {
			for time.Since(start) < measure.Length {
				if err := w(ctx, key); err != nil {
					mu.Lock()
					fault = errors.Join(fault, err)
					mu.Unlock()
					return
				}
				pairs.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(pairs.Load()) / time.Since(start).Seconds(), fault
}
