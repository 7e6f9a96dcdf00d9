package flawed

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
)

var z186 = Lock{
	ID: "Z186", Title: "a TTL that stays",
	Summary: "One long lease makes all later ones long, and others wait as long when their holders die.",
	Seen:    "Options that are applied to the settings of the client, and not to a copy.",
	Instead: "A copy of the settings for each call.",
	File:    "ttl_remembered.go", Over: Memory,
	Rule: "OptionsOfOneCall",
	On:   asLocker(func(l *lock.Client) lock.Locker { return &remembersTTL{policy: policy{l}} }),
}

// remembersTTL applies options to its own settings.
//
//	A: for _, o := range opts { o(&client.settings) }
//	A: Acquire("migration", WithTTL(time.Hour)), works, releases
//	A: Acquire("heartbeat")             -> SET heartbeat ... PX 3600000
//	A is killed; B waits for an hour for a key whose TTL is 15 s
//
// Caught by OptionsOfOneCall, which names a TTL once, and then none.
//
// Instead: s := client.settings, and apply them to s.
type remembersTTL struct {
	policy
	ttl atomic.Int64
}

func (r *remembersTTL) remembered(opts []lock.Option) []lock.Option {
	set, err := lock.ResolveOptions(opts...)
	if err != nil {
		return opts
	}
	if set.TTL != 0 {
		r.ttl.Store(int64(set.TTL))
		return opts
	}
	if ttl := r.ttl.Load(); ttl != 0 {
		return but(opts, lock.WithTTL(time.Duration(ttl)))
	}
	return opts
}

// Acquire implements lock.Locker.
func (r *remembersTTL) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return r.policy.Acquire(ctx, key, r.remembered(opts)...)
}

// TryAcquire implements lock.Locker.
func (r *remembersTTL) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return r.policy.TryAcquire(ctx, key, r.remembered(opts)...)
}
