package flawed

import (
	"context"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z75 = Lock{
	ID: "Z75", Title: "no TTL means no expiry",
	Summary: "A caller that names no TTL gets a record that outlives its process.",
	Seen:    "Optional arguments whose zero value is handed on.",
	Instead: "A default that ends.",
	File:    "no_ttl_no_expiry.go", Over: Memory,
	Rule: "Defaults",
	On:   onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker { return unlimited{policy{l}} }),
}

// unlimited takes a TTL that was not given for one without end.
//
//	A: acquires job, with the defaults  -> SET job a NX
//	A is killed
//	B: SET job b NX PX 10000            -> nil, today and tomorrow
//
// Tests name a TTL, to be quick, and never see it. Caught by Defaults, which makes calls
// without any option.
//
// Instead: every record expires.
type unlimited struct{ policy }

// noExpiry stands for none at all.
const noExpiry = 30 * 24 * time.Hour

func withEnd(opts []lock.Option) []lock.Option {
	if set, err := lock.ResolveOptions(opts...); err == nil && set.TTL == 0 {
		opts = append(opts[:len(opts):len(opts)], lock.WithTTL(noExpiry))
	}
	return opts
}

// Acquire implements lock.Locker.
func (u unlimited) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return u.policy.Acquire(ctx, key, withEnd(opts)...)
}

// TryAcquire implements lock.Locker.
func (u unlimited) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return u.policy.TryAcquire(ctx, key, withEnd(opts)...)
}
