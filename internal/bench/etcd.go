package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/mortiselock/lock"
	etcdlock "github.com/mortiselock/lock/etcd"
	"github.com/mortiselock/lock/internal/servertest"
)

func (b *bench) etcdClient() (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints: []string{"http://" + servertest.SharedEtcd(b.host).Addr()}, Logger: zap.NewNop(),
	})
}

// side is one of several ways to do the same thing.
type side struct {
	name string
	once func() error
	rate []float64
}

// etcd compares acquire and release of a free key by one goroutine with the bare
// requests, and with the Mutex of the client library. Two of its handles in one
// session both hold, so that each owner needs a session of its own.
func (b *bench) etcd() error {
	client, err := b.etcdClient()
	if err != nil {
		return err
	}
	defer client.Close()
	locker, err := etcdlock.New(b.ctx, client, nil)
	if err != nil {
		return err
	}
	defer locker.Close()
	lease, err := client.Grant(b.ctx, 60)
	if err != nil {
		return err
	}
	kept, err := concurrency.NewSession(client)
	if err != nil {
		return err
	}
	defer kept.Close()
	release := func(l lock.Lease, err error) error {
		if err != nil {
			return err
		}
		return l.Release(b.ctx)
	}
	return b.sideBySide("pairs/s", []*side{
		{name: "create if absent + delete", once: func() error {
			resp, err := client.Txn(b.ctx).If(clientv3.Compare(clientv3.CreateRevision("bare"), "=", 0)).
				Then(clientv3.OpPut("bare", "", clientv3.WithLease(lease.ID))).Commit()
			if err == nil && !resp.Succeeded {
				err = fmt.Errorf("the bare key was held")
			}
			if err != nil {
				return err
			}
			_, err = client.Delete(b.ctx, "bare")
			return err
		}},
		{name: "Mutex, a session per owner", once: func() error { return mutexOnce(b.ctx, client, "mutex", nil) }},
		{name: "Mutex, one session for all", once: func() error {
			m := concurrency.NewMutex(kept, "mutex-kept")
			if err := m.Lock(b.ctx); err != nil {
				return err
			}
			return m.Unlock(b.ctx)
		}},
		{name: "Locker.TryAcquire + Release", once: func() error { return release(locker.TryAcquire(b.ctx, "ours")) }},
		{name: "Locker.Acquire + Release", once: func() error { return release(locker.Acquire(b.ctx, "ours")) }},
	})
}

// mutexOnce is one hold of the client library's Mutex, in a session of its own.
func mutexOnce(ctx context.Context, client *clientv3.Client, key string, hold func()) error {
	s, err := concurrency.NewSession(client, concurrency.WithTTL(15))
	if err != nil {
		return err
	}
	m := concurrency.NewMutex(s, key)
	if err := m.Lock(ctx); err != nil {
		return err
	}
	if hold != nil {
		hold()
	}
	if err := m.Unlock(ctx); err != nil {
		return err
	}
	return s.Close()
}

// sideBySide runs each side for a while in every round, and compares them with the
// first.
func (b *bench) sideBySide(unit string, sides []*side) error {
	const roundLength = 700 * time.Millisecond
	for round := -1; round < b.rounds; round++ { // the first one warms up
		for _, s := range sides {
			n, start := 0, time.Now()
			for time.Since(start) < roundLength {
				if err := s.once(); err != nil {
					return err
				}
				n++
			}
			if round >= 0 {
				s.rate = append(s.rate, float64(n)/time.Since(start).Seconds())
			}
		}
	}
	printSides(unit, sides)
	return nil
}

func printSides(unit string, sides []*side) {
	for _, s := range sides {
		ratios := make([]float64, len(s.rate))
		for i := range s.rate {
			ratios[i] = s.rate[i] / sides[0].rate[i]
		}
		lo, hi := spread(ratios)
		fmt.Printf("  %-32s %8.0f %s   ratio to the first %.2f (%.2f to %.2f)\n", s.name, median(s.rate), unit, median(ratios), lo, hi)
	}
}

// etcdContended lets several clients with several goroutines each compete for one
// key that is held for a millisecond at a time.
func (b *bench) etcdContended() error {
	const (
		clients    = 4
		goroutines = 4
		heldFor    = time.Millisecond
	)
	type contender = func(ctx context.Context, hold func()) error
	var mutexes, kept, locks []contender
	for range clients {
		client, err := b.etcdClient()
		if err != nil {
			return err
		}
		defer client.Close()
		locker, err := etcdlock.New(b.ctx, client, nil)
		if err != nil {
			return err
		}
		defer locker.Close()
		for range goroutines {
			session, err := concurrency.NewSession(client, concurrency.WithTTL(15))
			if err != nil {
				return err
			}
			defer session.Close()
			kept = append(kept, func(ctx context.Context, hold func()) error {
				m := concurrency.NewMutex(session, "mutex-kept-contended")
				if err := m.Lock(ctx); err != nil {
					return err
				}
				hold()
				return m.Unlock(context.WithoutCancel(ctx))
			})
			mutexes = append(mutexes, func(ctx context.Context, hold func()) error { return mutexOnce(ctx, client, "mutex-contended", hold) })
			locks = append(locks, func(ctx context.Context, hold func()) error {
				l, err := locker.Acquire(ctx, "contended")
				if err != nil {
					return err
				}
				hold()
				return l.Release(ctx)
			})
		}
	}
	sides := []*side{{name: "Mutex, a session per owner"}, {name: "Mutex, a session per goroutine"}, {name: "Locker.Acquire + Release"}}
	for round := -1; round < b.rounds; round++ {
		for i, contenders := range [][]contender{mutexes, kept, locks} {
			rate, err := contendFor(b.ctx, 2*time.Second, heldFor, contenders)
			if err != nil {
				return err
			}
			if round >= 0 {
				sides[i].rate = append(sides[i].rate, rate)
			}
		}
	}
	printSides("grants/s", sides)
	return nil
}

// contendFor is how many holds a second the contenders get.
func contendFor(ctx context.Context, length, heldFor time.Duration, contenders []func(ctx context.Context, hold func()) error) (float64, error) {
	var grants atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, len(contenders))
	start := time.Now()
	end := start.Add(length)
	for _, once := range contenders {
		wg.Go(func() {
			for time.Now().Before(end) {
				err := once(ctx, func() {
					if time.Now().Before(end) {
						grants.Add(1)
					}
					time.Sleep(heldFor)
				})
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return 0, err
	default:
		return float64(grants.Load()) / length.Seconds(), nil
	}
}
