package flawed

import (
	"context"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z42 = Lock{
	ID: "Z42", Title: "renewal that outlives the release",
	Summary: "The renewing goroutine asks for a hold that is gone, for ever.",
	Seen:    "redisson/redisson#1626, #7272; mike-marcacci/node-redlock#296.",
	Instead: "Stop the renewal first.",
	File:    "renewal_outlives_release.go", Over: Memory,
	Rule: "ReleaseEndsRequests",
	Also: []string{"NothingKept", "MaxHoldEnds"},
	On: onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker {
		life, shut := context.WithCancel(context.Background())
		return heartbeats{policy{l}, life, shut}
	}),
}

// heartbeats is a Locker that keeps its holds alive by requests of its own, from the
// grant to the end of the program.
//
//	A: acquires job, a goroutine renews it every 3 s
//	A: releases job; the goroutine goes on
//	A: acquires and releases job again: now there are two, and tomorrow ten thousand
//
// As each renewal names its hold, nobody is harmed but the server. With an owner
// that is the same for all holds of the process, it would keep alive what another
// hold has left to expire. Caught by ReleaseEndsRequests, which counts what is sent
// after the end of a lease.
//
// Instead: end the goroutine with the lease's context.
type heartbeats struct {
	policy
	life context.Context
	shut context.CancelFunc
}

func (l heartbeats) beat(lease lock.Lease) {
	held, _ := lock.HeldOn[backend.Backend](lease)
	for rest(l.life, held.Hold.TTL/3) { // lease.Context() would end with the lease
		_, _ = held.Backend.Renew(l.life, held.Hold)
	}
}

// Acquire implements lock.Locker.
func (l heartbeats) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return l.beating(opts)(l.policy.Acquire(ctx, key, opts...))
}

// TryAcquire implements lock.Locker.
func (l heartbeats) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return l.beating(opts)(l.policy.TryAcquire(ctx, key, opts...))
}

func (l heartbeats) beating(opts []lock.Option) func(lock.Lease, error) (lock.Lease, error) {
	set, _ := lock.ResolveOptions(opts...)
	return func(lease lock.Lease, err error) (lock.Lease, error) {
		if err == nil && !set.NoRenewal {
			go l.beat(lease)
		}
		return lease, err
	}
}

// Close implements lock.Locker.
func (l heartbeats) Close() error {
	l.shut()
	return l.policy.Close()
}
