package measure

import (
	"context"
	"fmt"
)

// A Lease is what is measured of one, such as a lock.Lease.
type Lease interface {
	Context() context.Context
	Release(ctx context.Context) error
}

// A Taker takes a lock and returns how to give it back.
type Taker func(ctx context.Context) (giveBack func() error, err error)

// Taking is a Taker of a Locker's key. Acquire is one of the Locker's methods, Acquire
// or TryAcquire.
func Taking[L Lease, Option any](acquire func(context.Context, string, ...Option) (L, error), key string, opts ...Option) Taker {
	return func(ctx context.Context) (func() error, error) {
		lease, err := acquire(ctx, key, opts...)
		if err != nil {
			return nil, fmt.Errorf("acquiring: %w", err)
		}
		return func() error {
			if err := lease.Release(ctx); err != nil {
				return fmt.Errorf("releasing: %w", err)
			}
			return nil
		}, nil
	}
}
