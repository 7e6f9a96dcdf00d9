package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/servertest"
	zklock "github.com/mortiselock/lock/zookeeper"
)

// pair takes a lock and gives it back.
type pair struct {
	acquire func() error
	release func() error
}

// zookeeper compares with the Lock of the client library: one goroutine on a free
// key, and several sessions with several goroutines each on one key that is held for
// a millisecond at a time.
func (b *bench) zookeeper() error {
	const (
		sessions    = 4
		goroutines  = 4
		heldFor     = time.Millisecond
		roundLength = 2 * time.Second
	)
	addr := servertest.SharedZooKeeper(b.host).Addr()
	var conns []*zk.Conn
	var lockers []lock.Locker
	for range sessions {
		conn, events, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogInfo(false))
		if err != nil {
			return err
		}
		defer func() {
			conn.Close()
			for range events {
			}
		}()
		conns = append(conns, conn)
		l, err := zklock.New(b.ctx, []string{addr}, nil)
		if err != nil {
			return err
		}
		defer l.Close()
		lockers = append(lockers, l)
	}
	library := func(session int, key string) pair {
		l := zk.NewLock(conns[session], "/bench/"+key, zk.WorldACL(zk.PermAll))
		return pair{l.Lock, l.Unlock}
	}
	ours := func(try bool) func(int, string) pair {
		return func(session int, key string) pair {
			var lease lock.Lease
			acquire := lockers[session].Acquire
			if try {
				acquire = lockers[session].TryAcquire
			}
			return pair{
				func() (err error) { lease, err = acquire(b.ctx, key); return err },
				func() error { return lease.Release(b.ctx) },
			}
		}
	}
	sides := []struct {
		name    string
		of      func(session int, key string) pair
		one     []float64 // pairs per second
		several []float64 // grants per second
	}{
		{name: "zk.Lock + Unlock", of: library},
		{name: "Locker.Acquire + Release", of: ours(false)},
		{name: "Locker.TryAcquire + Release", of: ours(true)},
	}
	for round := -1; round < b.rounds; round++ { // the first one warms up
		for i := range sides {
			s := &sides[i]
			one, err := turns(b.ctx, 1, 1, "one", s.of, 0, roundLength)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			several := 0.0
			if i < 2 { // a try does not wait
				if several, err = turns(b.ctx, sessions, goroutines, "several", s.of, heldFor, roundLength); err != nil {
					return fmt.Errorf("%s: %w", s.name, err)
				}
			}
			if round >= 0 {
				s.one, s.several = append(s.one, one), append(s.several, several)
			}
		}
	}
	report := func(what, name string, xs, base []float64) {
		ratios := make([]float64, len(xs))
		for i := range xs {
			ratios[i] = xs[i] / base[i]
		}
		lo, hi := spread(ratios)
		fmt.Printf("  %-28s %-28s %7.0f/s   ratio to zk.Lock %.2f (%.2f to %.2f)\n", what, name, median(xs), median(ratios), lo, hi)
	}
	for i, s := range sides {
		report("one goroutine", s.name, s.one, sides[0].one)
		if i < 2 {
			defer report(fmt.Sprintf("%d x %d goroutines, held %s", sessions, goroutines, heldFor), s.name, s.several, sides[0].several)
		}
	}
	return nil
}

// turns lets goroutines of several sessions take one key in turns, and returns how
// often it was taken per second.
func turns(ctx context.Context, sessions, goroutines int, key string, of func(int, string) pair, heldFor, length time.Duration) (float64, error) {
	var (
		mu     sync.Mutex
		wg     sync.WaitGroup
		grants int
		fault  error
	)
	start := time.Now()
	for session := range sessions {
		for range goroutines {
			p := of(session, key)
			wg.Go(func() {
				for time.Since(start) < length && ctx.Err() == nil {
					err := p.acquire()
					if err == nil {
						if heldFor > 0 {
							time.Sleep(heldFor)
						}
						err = p.release()
					}
					mu.Lock()
					grants++
					fault = errors.Join(fault, err)
					mu.Unlock()
					if err != nil {
						return
					}
				}
			})
		}
	}
	wg.Wait()
	return float64(grants) / time.Since(start).Seconds(), fault
}
