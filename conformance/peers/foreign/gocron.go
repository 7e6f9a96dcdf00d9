package foreign

import (
	"context"

	"github.com/go-co-op/gocron/v2"

	"github.com/mortiselock/lock"
)

// Gocron is for gocron.WithDistributedLocker. Copies that leave gocron-redis-lock give it
// lock.Both of [Redsync], with the names of their jobs as they are, and of the new store.
type Gocron struct{ lock.Locker }

// Lock implements gocron.Locker.
func (g Gocron) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	l, err := g.TryAcquire(ctx, job)
	return gocronLock{l}, err
}

type gocronLock struct{ lock.Lease }

// Unlock implements gocron.Lock.
func (l gocronLock) Unlock(ctx context.Context) error { return l.Release(ctx) }
