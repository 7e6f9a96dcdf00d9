package flawed

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
)

var z12 = Lock{
	ID: "Z12", Title: "a renewal is dated from its answer",
	Summary: "The holder counts from the answer; the server began earlier.",
	Seen:    "Deadlines of now() + ttl behind the call, as in rueidislock and madelson/DistributedLock.",
	Instead: "Count from before the request, less a drift allowance.",
	File:    "renewal_dated_late.go", Over: Memory,
	Rule: "DeadlineFromSend",
	Also: takeovers,
	On:   asLocker(func(l *lock.Client) lock.Locker { return datedLate{policy{l}} }),
}

// datedLate dates grants right, and renewals from their answers.
//
//	A, 12:00:00: PEXPIRE job 10000 is sent, and arrives: the record lasts until 12:00:10
//	A, 12:00:02: receives the answer, and holds until 12:00:12, as it thinks
//	A: cannot reach the server any more
//	B, 12:00:10: SET job b NX PX 10000 -> OK, while A works for two seconds more
//
// The slower the network, the larger the overlap, and the likelier that the next
// renewal fails. Caught by DeadlineFromSend, which knows when each call began.
//
// Instead: the same rule as for grants.
type datedLate struct{ policy }

// Acquire implements lock.Locker.
func (l datedLate) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	lease, err := l.policy.Acquire(ctx, key, opts...)
	return dateLate(opts, lease, err)
}

// TryAcquire implements lock.Locker.
func (l datedLate) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	lease, err := l.policy.TryAcquire(ctx, key, opts...)
	return dateLate(opts, lease, err)
}

func dateLate(opts []lock.Option, lease lock.Lease, err error) (lock.Lease, error) {
	if err != nil {
		return nil, err
	}
	set, _ := lock.ResolveOptions(opts...)
	return &lateRenewal{Lease: lease, ttl: set.TTL}, nil
}

type lateRenewal struct {
	lock.Lease
	ttl   time.Duration
	until atomic.Pointer[time.Time]
}

// Renew implements lock.Lease.
func (l *lateRenewal) Renew(ctx context.Context) error {
	err := l.Lease.Renew(ctx)
	dawdle() // the way of the answer
	if err == nil {
		until := time.Now().Add(l.ttl)
		l.until.Store(&until)
	}
	return err
}

// Deadline implements lock.Lease.
func (l *lateRenewal) Deadline() (time.Time, bool) {
	d, ok := l.Lease.Deadline()
	if until := l.until.Load(); until != nil && until.After(d) {
		return *until, true
	}
	return d, ok
}
