package flawed

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z162 = Lock{
	ID: "Z162", Title: "a loss that waits for the calls under way",
	Summary: "A holder that was cut off is told when a hanging TryAcquire of another key has given up.",
	Seen:    "Timers whose function takes a mutex that is held for the time of a request.",
	Instead: "No mutex is held across a request.",
	File:    "loss_waits_for_tries.go", Over: Memory,
	Rule: "LostWhenCutOff",
	On:   onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker { return &busyLocker{policy: policy{l}} }),
}

// busyLocker ends the context of a lost lease when no TryAcquire is under way.
//
//	A: holds import; the network goes away
//	A: TryAcquire("report"): no answer, for 25 s
//	A's deadline passes; its timer waits for the end of that call
//	B: Acquire("import") -> granted. A still writes
//
// With a server that answers it takes a millisecond. Caught by LostWhenCutOff, which has a
// TryAcquire hang beside the renewals.
type busyLocker struct {
	policy
	underWay atomic.Int64
}

// TryAcquire implements lock.Locker.
func (b *busyLocker) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	b.underWay.Add(1)
	defer b.underWay.Add(-1)
	return b.told(b.policy.TryAcquire(ctx, key, opts...))
}

// Acquire implements lock.Locker.
func (b *busyLocker) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return b.told(b.policy.Acquire(ctx, key, opts...))
}

func (b *busyLocker) told(lease lock.Lease, err error) (lock.Lease, error) {
	if err != nil {
		return nil, err
	}
	l, end := ownContext(lease, func(cause error) bool { return !errors.Is(cause, lock.ErrLost) || b.underWay.Load() == 0 })
	inner := lease.Context()
	context.AfterFunc(inner, func() {
		for b.underWay.Load() > 0 && l.ctx.Err() == nil {
			time.Sleep(dawdling / 10)
		}
		end(context.Cause(inner))
	})
	return l, nil
}
