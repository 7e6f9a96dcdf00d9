package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock"
	redislock "github.com/mortiselock/lock/redis"
)

// contended lets several Lockers with several goroutines each compete for one key
// that is held for a millisecond at a time, and measures for what part of the time
// the key is in use and how long the waits are.
func (b *bench) contended() error {
	if err := b.contendedAs(false); err != nil {
		return err
	}
	fmt.Println("  with a fair queue:")
	return b.contendedAs(true)
}

func (b *bench) contendedAs(fair bool) error {
	const (
		lockers     = 4
		goroutines  = 8
		heldFor     = time.Millisecond
		roundLength = 3 * time.Second
	)
	var use, p50, p99, longest, commands []float64
	for range b.rounds {
		r, err := b.contend(fair, lockers, goroutines, heldFor, roundLength)
		if err != nil {
			return err
		}
		// The fair share of a waiter is its turn after everybody else's.
		share := r.wall.Seconds() / float64(r.grants) * lockers * goroutines
		use = append(use, r.used.Seconds()/r.wall.Seconds())
		p50 = append(p50, quantile(r.waits, 0.5)/share)
		p99 = append(p99, quantile(r.waits, 0.99)/share)
		longest = append(longest, quantile(r.waits, 1)/share)
		commands = append(commands, r.commands/float64(r.grants))
	}
	lo, hi := spread(use)
	fmt.Printf("  %d Lockers x %d goroutines, held %s: in use %.0f%% of the time (%.0f to %.0f)\n",
		lockers, goroutines, heldFor, 100*median(use), 100*lo, 100*hi)
	lo, hi = spread(p99)
	fmt.Printf("  wait in fair shares: median %.2f, p99 %.2f (%.2f to %.2f), longest %.2f\n", median(p50), median(p99), lo, hi, median(longest))
	fmt.Printf("  Redis commands per hand-over: %.1f\n", median(commands))
	return nil
}

type contention struct {
	wall, used time.Duration
	grants     int
	waits      []float64 // seconds
	commands   float64
}

func (b *bench) contend(fair bool, lockers, goroutines int, heldFor, length time.Duration) (contention, error) {
	var r contention
	admin := b.client()
	defer admin.Close()
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	var (
		mu    sync.Mutex
		wg    sync.WaitGroup
		fault error
	)
	begin := make(chan struct{})
	var deadline time.Time
	for range lockers {
		client := b.client()
		defer client.Close()
		locker, err := redislock.New(b.ctx, client, &redislock.Options{Fair: fair})
		if err != nil {
			return r, err
		}
		defer locker.Close()
		for range goroutines {
			wg.Go(func() {
				<-begin
				for time.Now().Before(deadline) {
					asked := time.Now()
					lease, err := locker.Acquire(ctx, "contended")
					granted := time.Now()
					if err == nil {
						time.Sleep(heldFor)
						used := time.Since(granted)
						err = lease.Release(b.ctx)
						mu.Lock()
						if granted.Before(deadline) {
							r.grants++
							r.used += used
							r.waits = append(r.waits, granted.Sub(asked).Seconds())
						}
						mu.Unlock()
					}
					if err != nil && !errors.Is(err, lock.ErrHeld) {
						mu.Lock()
						fault = errors.Join(fault, err)
						mu.Unlock()
						return
					}
				}
			})
		}
	}
	before, err := commandCount(b.ctx, admin)
	if err != nil {
		return r, err
	}
	start := time.Now()
	deadline = start.Add(length)
	close(begin)
	time.Sleep(time.Until(deadline))
	r.wall = time.Since(start)
	after, err := commandCount(b.ctx, admin)
	if err != nil {
		return r, err
	}
	r.commands = after - before
	wg.Wait()
	return r, fault
}

// commandCount is how many commands the server has processed, those inside of
// scripts not counted.
func commandCount(ctx context.Context, c *goredis.Client) (float64, error) {
	text, err := c.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	total := 0.0
	for _, name := range []string{"evalsha", "eval", "subscribe", "unsubscribe", "ping"} {
		var calls float64
		if _, after, ok := strings.Cut(text, "cmdstat_"+name+":calls="); ok {
			_, _ = fmt.Sscanf(after, "%f", &calls)
		}
		total += calls
	}
	return total, nil
}

func quantile(xs []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(xs))
	if len(s) == 0 {
		return 0
	}
	return s[min(int(q*float64(len(s))), len(s)-1)]
}
