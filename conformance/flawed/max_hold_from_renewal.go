package flawed

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
)

var z141 = Lock{
	ID: "Z141", Title: "a maximum hold that is renewed by hand",
	Summary: "Whoever renews in a loop of its own is never stopped, and the maximum was set against such loops.",
	Seen:    "One function that sets all timers of a lease, which the grant and Renew call alike.",
	Instead: "The maximum is set by the grant, and by nothing else.",
	File:    "max_hold_from_renewal.go", Over: Memory,
	Rule: "MaxHoldEnds",
	On:   asLocker(func(l *lock.Client) lock.Locker { return limitedFromRenewal{policy{l}} }),
}

// limitedFromRenewal sets the timer of the maximum again in Renew. What is renewed
// automatically leaves it alone.
//
//	A: Acquire("sync", WithMaxHold(time.Minute)) -> granted
//	A, for each of its rows: Renew() -> ok, and the maximum is a minute away again
//	A never comes to an end of the rows, and nobody else is granted the key
//
// Caught by MaxHoldEnds, which renews by hand until the maximum.
type limitedFromRenewal struct{ policy }

// Acquire implements lock.Locker.
func (l limitedFromRenewal) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return limitSinceRenewal(opts)(l.policy.Acquire(ctx, key, but(opts, withoutLimit)...))
}

// TryAcquire implements lock.Locker.
func (l limitedFromRenewal) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return limitSinceRenewal(opts)(l.policy.TryAcquire(ctx, key, but(opts, withoutLimit)...))
}

func withoutLimit(s *lock.Settings) { s.MaxHold = 0 }

func limitSinceRenewal(opts []lock.Option) func(lock.Lease, error) (lock.Lease, error) {
	set, _ := lock.ResolveOptions(opts...)
	return func(lease lock.Lease, err error) (lock.Lease, error) {
		if err != nil || set.MaxHold == 0 || set.MaxHold > 24*time.Hour {
			return lease, err
		}
		own, end := ownContext(lease, func(error) bool { return true })
		l := &limitedAnew{endsItself: endsItself{own, end}, limit: set.MaxHold}
		l.timer = time.AfterFunc(l.limit, func() {
			end(lock.ErrMaxHold)
			_ = lease.Release(context.Background())
		})
		l.until.Store(time.Now().Add(l.limit))
		context.AfterFunc(own.ctx, func() { l.timer.Stop() })
		return l, nil
	}
}

type limitedAnew struct {
	endsItself
	limit time.Duration
	timer *time.Timer
	until atomic.Value // of the maximum
	told  atomic.Bool
}

// Renew implements lock.Lease.
func (l *limitedAnew) Renew(ctx context.Context) error {
	err := l.endsItself.Renew(ctx)
	if err == nil {
		l.until.Store(time.Now().Add(l.limit))
		l.timer.Reset(l.limit)
	}
	return err
}

// Release implements lock.Lease.
func (l *limitedAnew) Release(ctx context.Context) error {
	err := l.endsItself.Release(ctx)
	if errors.Is(context.Cause(l.ctx), lock.ErrMaxHold) && !l.told.Swap(true) {
		return lock.ErrMaxHold
	}
	return err
}

// Deadline implements lock.Lease.
func (l *limitedAnew) Deadline() (time.Time, bool) {
	d, known := l.endsItself.Deadline()
	if until := l.until.Load().(time.Time); until.Before(d) {
		d = until
	}
	return d, known
}
