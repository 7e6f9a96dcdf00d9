package flawed

import (
	"context"
	"time"

	"github.com/mortiselock/lock"
)

var z116 = Lock{
	ID: "Z116", Title: "a maximum hold that is over before it begins",
	Summary: "The largest maximum is added to the clock, which wraps around: the hold ends at once.",
	Seen:    "Ends that are sums of nanoseconds since 1970, and configurations that say \"no limit\" with the largest number.",
	Instead: "Compare what has passed with the limit.",
	File:    "max_hold_overflows.go", Over: Memory,
	Rule: "MaxHoldEnds",
	On:   asLocker(func(l *lock.Client) lock.Locker { return wrapsAround{policy{l}} }),
}

// wrapsAround reckons with the end of a hold.
//
//	A: Acquire("import", WithMaxHold(math.MaxInt64)) -> granted
//	the hold ends 292 years before 1970
//	A is told that its hold has reached its maximum
//
// Caught by MaxHoldEnds, which asks for the largest maximum too.
type wrapsAround struct{ policy }

func summed(s *lock.Settings) {
	if end := time.Now().UnixNano() + int64(s.MaxHold); s.MaxHold > 0 && end < time.Now().UnixNano() {
		s.MaxHold = 1
	}
}

// Acquire implements lock.Locker.
func (w wrapsAround) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return w.policy.Acquire(ctx, key, but(opts, summed)...)
}

// TryAcquire implements lock.Locker.
func (w wrapsAround) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return w.policy.TryAcquire(ctx, key, but(opts, summed)...)
}
