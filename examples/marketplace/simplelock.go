package main

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// simpleLock is the lock that is compared with, not one to use: it has no expiry, so that
// a holder who dies keeps everybody out for ever, and who waits asks again and again.
type simpleLock struct {
	redis goredis.UniversalClient
	key   string
	poll  time.Duration
}

// acquire sets the key if it is not there, and asks again until it is set or ctx ends.
func (l simpleLock) acquire(ctx context.Context) (release func(context.Context) error, err error) {
	id := rand.Text()
	for {
		ok, err := l.redis.SetNX(context.WithoutCancel(ctx), l.key, id, 0).Result()
		if err != nil {
			return nil, err
		}
		if ok {
			return func(ctx context.Context) error { return l.release(ctx, id) }, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(l.poll):
		}
	}
}

// release deletes the key if it is still this holder's.
func (l simpleLock) release(ctx context.Context, id string) error {
	return l.redis.Watch(ctx, func(tx *goredis.Tx) error {
		held, err := tx.Get(ctx, l.key).Result()
		if err != nil {
			return err
		}
		if held != id {
			return errors.New("somebody else has the lock")
		}
		_, err = tx.TxPipelined(ctx, func(p goredis.Pipeliner) error {
			p.Del(ctx, l.key)
			return nil
		})
		return err
	}, l.key)
}
