package flawed

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock"
)

var z94 = Lock{
	ID: "Z94", Title: "a loss that is told on a channel which nobody reads",
	Summary: "Each loss leaves a goroutine behind.",
	Seen:    "Channels without a buffer; sanketplus/go-mysql-lock#9, Vonage/gosrvlib#126.",
	Instead: "Close a channel, or end a context.",
	File:    "loss_nobody_reads.go", Over: Memory,
	Rule: "NoLeak",
	Also: []string{"NothingKept"},
	On:   asLocker(func(l *lock.Client) lock.Locker { return tellsLosses{policy{l}, make(chan string)} }),
}

// tellsLosses offers the keys of lost leases on a channel.
//
//	A: acquires job; looks at the lease's context, as the first example does
//	the lease is lost; the goroutine that watches it sends "job" on the channel of losses
//	nobody has ever asked for that channel
//
// A lease that is released, or ended by Close, leaves nothing, so that it takes a bad
// week to see it. Caught by NoLeak, which loses leases too.
//
// Instead: nothing that ends may depend on a reader.
type tellsLosses struct {
	policy
	lost chan string
}

// Acquire implements lock.Locker.
func (l tellsLosses) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return l.watch(l.policy.Acquire(ctx, key, opts...))
}

// TryAcquire implements lock.Locker.
func (l tellsLosses) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return l.watch(l.policy.TryAcquire(ctx, key, opts...))
}

func (l tellsLosses) watch(lease lock.Lease, err error) (lock.Lease, error) {
	if err != nil {
		return nil, err
	}
	go func() {
		<-lease.Context().Done()
		if errors.Is(context.Cause(lease.Context()), lock.ErrLost) {
			select {
			case l.lost <- lease.Key():
			case <-time.After(time.Hour): // in earnest there is no such end
			}
		}
	}()
	return lease, nil
}
