package main

import (
	"context"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/measure"
	"github.com/mortiselock/lock/internal/servertest"
	zklock "github.com/mortiselock/lock/zookeeper"
)

// zookeeper compares with the Lock of the client library: one goroutine on a free
// key, and several sessions with several goroutines each on one key that is held for
// a millisecond at a time.
func (b *bench) zookeeper() error {
	contest := measure.Contest{Clients: 4, Goroutines: 4, HeldFor: time.Millisecond, Length: 2 * time.Second}
	addr := servertest.SharedZooKeeper(b.host).Addr()
	library := &measure.Contender{Name: "zk.Lock + Unlock"}
	ours := &measure.Contender{Name: "Locker.Acquire + Release"}
	var conns []*zk.Conn
	var lockers []lock.Locker
	for range contest.Clients {
		conn, events, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogInfo(false))
		if err != nil {
			return err
		}
		defer func() {
			conn.Close()
			for range events {
			}
		}()
		locker, err := zklock.New(b.ctx, []string{addr}, nil)
		if err != nil {
			return err
		}
		defer locker.Close()
		conns, lockers = append(conns, conn), append(lockers, locker)
		for range contest.Goroutines {
			library.Takers = append(library.Takers, zkLock(conn, "several"))
			ours.Takers = append(ours.Takers, measure.Taking(locker.Acquire, "several"))
		}
	}
	bare := &measure.Side{Name: library.Name, Take: zkLock(conns[0], "one")}
	sides := []*measure.Side{
		bare,
		{Name: ours.Name, Take: measure.Taking(lockers[0].Acquire, "one"), Against: to(bare, 0.9)},
		{Name: "Locker.TryAcquire + Release", Take: measure.Taking(lockers[0].TryAcquire, "one"), Against: to(bare, 0.9)},
	}
	fmt.Println("  one goroutine:")
	if err := b.diskPairs(sides...); err != nil {
		return err
	}
	return b.compete(contest, "%8.0f grants/s", measure.Contention.GrantsPerSecond, 0.9, library, ours)
}

// zkLock is the Lock of the client library.
func zkLock(conn *zk.Conn, key string) measure.Taker {
	l := zk.NewLock(conn, "/bench/"+key, zk.WorldACL(zk.PermAll))
	return func(context.Context) (func() error, error) { return l.Unlock, l.Lock() }
}
