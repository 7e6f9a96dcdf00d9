package redislock

import (
	"context"
	"errors"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/guarded"
)

var (
	_ guarded.Keeper = (*redisBackend)(nil)
	_ guarded.Keeper = (*fairBackend)(nil)
)

// GuardedValues implements guarded.Keeper with strings in the slots of the keys, which
// end by themselves an hour after they were written.
func (b *redisBackend) GuardedValues(context.Context) (guarded.Values, error) {
	return &guardedValues{b: b, used: map[string]struct{}{}}, nil
}

// GuardedValues implements guarded.Keeper.
func (f *fairBackend) GuardedValues(ctx context.Context) (guarded.Values, error) {
	return f.b.GuardedValues(ctx)
}

var guardedSetForAnHour = NewGuardedScript(`return redis.call('SET', KEYS[1], ARGV[1], 'EX', 3600)`)

type guardedValues struct {
	b *redisBackend

	mu   sync.Mutex
	used map[string]struct{}
}

func (v *guardedValues) nameOf(key string) string {
	return v.b.buckets.namesOf(key).bucket + "g:" + key
}

func (v *guardedValues) Write(ctx context.Context, lease lock.Lease, value string) error {
	name := v.nameOf(lease.Key())
	v.mu.Lock()
	v.used[name] = struct{}{}
	v.mu.Unlock()
	_, err := guardedSetForAnHour.Run(ctx, lease, []string{name}, value)
	return err
}

func (v *guardedValues) Read(ctx context.Context, key string) (string, error) {
	value, err := v.b.client.Get(ctx, v.nameOf(key)).Result()
	if errors.Is(err, goredis.Nil) {
		return "", nil
	}
	return value, err
}

func (v *guardedValues) Remove(ctx context.Context) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for name := range v.used {
		if err := v.b.client.Del(ctx, name).Err(); err != nil {
			return err
		}
		delete(v.used, name)
	}
	return nil
}
