package main

import (
	"context"
	"errors"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock"
)

// way is one way to keep two buyers from buying the same item.
type way struct {
	name string
	// open lets a buyer in, who has a Locker of its own, as a process has.
	open func(ctx context.Context, m market, lockURL, buyer string) (buyFunc, func(), error)
}

// buyFunc tries to buy an offer that was picked a moment ago. The error is errGone when
// another offer is to be picked. ctx bounds the wait for a lock.
type buyFunc func(ctx context.Context, o offer) error

var ways = []way{
	{"WATCH", byWatching},
	{"simple lock, market", bySimpleLock},
	{"Mortise, market", byMarketLock},
	{"Mortise, one item", byItemLock},
}

// byWatching trades only if nobody has touched the market since it began, be it with a
// purchase or with another seller's offer.
func byWatching(_ context.Context, m market, _, buyer string) (buyFunc, func(), error) {
	return func(ctx context.Context, o offer) error {
		ctx = context.WithoutCancel(ctx)
		err := m.redis.Watch(ctx, func(tx *goredis.Tx) error {
			return m.buy(ctx, tx, buyer, o)
		}, m.offers(), m.purse(buyer))
		if errors.Is(err, goredis.TxFailedErr) {
			return errGone
		}
		return err
	}, func() {}, nil
}

// bySimpleLock holds a lock as many write it at first.
func bySimpleLock(_ context.Context, m market, _, buyer string) (buyFunc, func(), error) {
	l := simpleLock{m.redis, m.prefix + ":lock", time.Millisecond}
	return func(ctx context.Context, o offer) error {
		release, err := l.acquire(ctx)
		if err != nil {
			return err
		}
		ctx = context.WithoutCancel(ctx)
		return errors.Join(m.buy(ctx, m.redis, buyer, o), release(ctx))
	}, func() {}, nil
}

// byMarketLock is the same with a lock of this project.
func byMarketLock(ctx context.Context, m market, lockURL, buyer string) (buyFunc, func(), error) {
	l, err := lock.Open(ctx, lockURL, nil)
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, o offer) error {
		lease, err := l.Acquire(ctx, m.offers())
		if err != nil {
			return err
		}
		ctx = context.WithoutCancel(ctx)
		return errors.Join(m.buy(ctx, m.redis, buyer, o), lease.Release(ctx))
	}, func() { _ = l.Close() }, nil
}

// byItemLock locks what it buys and nothing else. A buyer buys one thing at a time: who
// has several hands locks the purse too. An item that somebody is buying is as good as
// gone, so nobody waits for it.
func byItemLock(ctx context.Context, m market, lockURL, buyer string) (buyFunc, func(), error) {
	l, err := lock.Open(ctx, lockURL, nil)
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, o offer) error {
		ctx = context.WithoutCancel(ctx)
		lease, err := l.TryAcquire(ctx, m.offers()+"/"+o.item)
		if errors.Is(err, lock.ErrHeld) {
			return errGone
		}
		if err != nil {
			return err
		}
		return errors.Join(m.buy(ctx, m.redis, buyer, o), lease.Release(ctx))
	}, func() { _ = l.Close() }, nil
}
