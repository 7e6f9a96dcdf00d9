package main

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	etcdlock "github.com/mortiselock/lock/etcd"
	"github.com/mortiselock/lock/internal/measure"
	"github.com/mortiselock/lock/internal/servertest"
)

func (b *bench) etcdClient() (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints: []string{"http://" + servertest.Etcd(b.host, servertest.WithDataOnDisk()).Addr()}, Logger: zap.NewNop(),
	})
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
	lease, err := client.Grant(b.ctx, 3600) // for longer than any run
	if err != nil {
		return err
	}
	kept, err := concurrency.NewSession(client)
	if err != nil {
		return err
	}
	defer kept.Close()
	bare := &measure.Side{Name: "create if absent + delete", Take: func(ctx context.Context) (func() error, error) {
		resp, err := client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision("bare"), "=", 0)).
			Then(clientv3.OpPut("bare", "", clientv3.WithLease(lease.ID))).Commit()
		if err == nil && !resp.Succeeded {
			err = errBareHeld
		}
		return func() error { _, err := client.Delete(ctx, "bare"); return err }, err
	}}
	mutex := &measure.Side{Name: "Mutex, a session per owner", Take: newSessionMutex(client, "mutex")}
	against := append(to(bare, 0.9), measure.Comparison{To: mutex, By: "the second", Goal: measure.Goal{AtLeast: 2}})
	return b.diskPairs(
		bare,
		mutex,
		&measure.Side{Name: "Mutex, one session for all", Take: sessionMutex(kept, "mutex-kept")},
		&measure.Side{Name: "Locker.TryAcquire + Release", Take: measure.Taking(locker.TryAcquire, "ours"), Against: against},
		&measure.Side{Name: "Locker.Acquire + Release", Take: measure.Taking(locker.Acquire, "ours"), Against: against},
	)
}

// sessionMutex is the client library's Mutex, in one session for all holds.
func sessionMutex(s *concurrency.Session, key string) measure.Taker {
	return func(ctx context.Context) (func() error, error) {
		m := concurrency.NewMutex(s, key)
		return func() error { return m.Unlock(ctx) }, m.Lock(ctx)
	}
}

// newSessionMutex is the client library's Mutex, in a new session for each hold.
func newSessionMutex(client *clientv3.Client, key string) measure.Taker {
	return func(ctx context.Context) (func() error, error) {
		s, err := concurrency.NewSession(client, concurrency.WithTTL(15))
		if err != nil {
			return nil, err
		}
		unlock, err := sessionMutex(s, key)(ctx)
		return func() error {
			if err := unlock(); err != nil {
				return err
			}
			return s.Close()
		}, err
	}
}

// etcdContended lets several clients with several goroutines each compete for one
// key that is held for a millisecond at a time.
func (b *bench) etcdContended() error {
	contest := measure.Contest{Clients: 4, Goroutines: 4, HeldFor: time.Millisecond, Length: 2 * time.Second}
	mutexes := &measure.Contender{Name: "Mutex, a session per owner"}
	kept := &measure.Contender{Name: "Mutex, a session per goroutine"}
	ours := &measure.Contender{Name: "Locker.Acquire + Release"}
	for range contest.Clients {
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
		for range contest.Goroutines {
			session, err := concurrency.NewSession(client, concurrency.WithTTL(15))
			if err != nil {
				return err
			}
			defer session.Close()
			mutexes.Takers = append(mutexes.Takers, newSessionMutex(client, "mutex-contended"))
			kept.Takers = append(kept.Takers, sessionMutex(session, "mutex-kept-contended"))
			ours.Takers = append(ours.Takers, measure.Taking(locker.Acquire, "contended"))
		}
	}
	return b.compete(contest, "%8.0f grants/s", measure.Contention.GrantsPerSecond, 1.5, mutexes, kept, ours)
}
