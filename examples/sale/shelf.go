package main

import (
	"cmp"
	"context"
	"errors"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock"
	_ "github.com/mortiselock/lock/etcd"
	_ "github.com/mortiselock/lock/file"
	_ "github.com/mortiselock/lock/memory"
	_ "github.com/mortiselock/lock/mysql"
	_ "github.com/mortiselock/lock/redis"
	_ "github.com/mortiselock/lock/redis/redlock"
	_ "github.com/mortiselock/lock/zookeeper"
)

// shelf stands for a store that has no transactions, but compares a number. A write with
// a token that is smaller than one it has seen comes too late.
type shelf struct {
	mu    sync.Mutex
	stock int
	token uint64
}

var errTooLate = errors.New("a later buyer has written already")

func (s *shelf) read() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stock
}

func (s *shelf) write(stock int, token uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if token < s.token {
		return errTooLate
	}
	s.stock, s.token = stock, token
	return nil
}

func (s *shelf) shop(buy func(ctx context.Context, buyer int) (bool, error)) *shop {
	return &shop{
		buy:   buy,
		left:  func(context.Context) (int, error) { return s.read(), nil },
		close: func(context.Context) error { return nil },
	}
}

// noLock reads, thinks and writes, as if nobody else were there.
func noLock(_ context.Context, _ servers, s sale) (*shop, error) {
	on := &shelf{stock: s.stock}
	return on.shop(func(context.Context, int) (bool, error) {
		n := on.read()
		if n == 0 {
			return false, nil
		}
		s.think()
		return true, on.write(n-1, 0)
	}), nil
}

// byLock does it under a lock of any backend. Who sees an empty shelf goes without one.
func byLock(ctx context.Context, at servers, s sale) (*shop, error) {
	l, err := lock.Open(ctx, cmp.Or(at.lock, "file:"), nil)
	if err != nil {
		return nil, err
	}
	on := &shelf{stock: s.stock}
	shop := on.shop(func(ctx context.Context, _ int) (sold bool, err error) {
		if on.read() == 0 {
			return false, nil
		}
		err = lock.Do(ctx, l, "sale/"+at.name, func(_ context.Context, lease lock.Lease) error {
			n := on.read()
			if n == 0 {
				return nil
			}
			s.think()
			sold = true
			return on.write(n-1, lease.Token())
		})
		return sold && err == nil, err
	})
	shop.close = func(context.Context) error { return l.Close() }
	if opts, err := goredis.ParseURL(at.lock); err == nil { // a Redis, without parameters of ours
		server := counter{client: goredis.NewClient(opts)}
		shop.asked = server.asked
		shop.close = func(context.Context) error { return errors.Join(l.Close(), server.client.Close()) }
	}
	return shop, nil
}
