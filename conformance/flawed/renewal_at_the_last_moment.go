package flawed

import (
	"context"
	"fmt"
	"time"

	"github.com/mortiselock/lock"
)

var z105 = Lock{
	ID: "Z105", Title: "a renewal that gives up before the end",
	Summary: "A lease in its last quarter is taken for one that has run out.",
	Seen:    "Safety margins that are taken off twice, by the client library and by its caller.",
	Instead: "Let the server decide whether the lease is still there.",
	File:    "renewal_at_the_last_moment.go", Over: Memory,
	Rule: "RenewByHand",
	Also: []string{"RenewTransient", "RenewUnknown", "RenewIdempotentCount", "MaxHoldEnds"},
	On:   asLocker(func(l *lock.Client) lock.Locker { return marginTwice{policy{l}} }),
}

// marginTwice wants a quarter of the TTL to be left.
//
//	A: TryAcquire("import", WithTTL(time.Minute), WithoutRenewal())
//	A, after 50 s: Renew() -> not held
//	A gives up an hour's work that nobody has disturbed; the key stays locked for another 10 s
//
// Caught by RenewByHand, whose last renewal comes with a fifth of the TTL left.
//
// Instead: the deadline is the margin.
type marginTwice struct{ policy }

// Acquire implements lock.Locker.
func (m marginTwice) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return m.earlier(opts)(m.policy.Acquire(ctx, key, opts...))
}

// TryAcquire implements lock.Locker.
func (m marginTwice) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return m.earlier(opts)(m.policy.TryAcquire(ctx, key, opts...))
}

func (marginTwice) earlier(opts []lock.Option) func(lock.Lease, error) (lock.Lease, error) {
	return func(lease lock.Lease, err error) (lock.Lease, error) {
		if err != nil {
			return nil, err
		}
		set, _ := lock.ResolveOptions(opts...)
		return withMargin{lease, set.TTL / 4}, nil
	}
}

type withMargin struct {
	lock.Lease
	margin time.Duration
}

// Renew implements lock.Lease.
func (m withMargin) Renew(ctx context.Context) error {
	if d, known := m.Deadline(); known && m.Context().Err() == nil && time.Until(d) < m.margin {
		return fmt.Errorf("%w: the lease is about to run out", lock.ErrNotHeld)
	}
	return m.Lease.Renew(ctx)
}
