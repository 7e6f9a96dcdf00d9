package flawed

import (
	"context"
	"time"

	"github.com/mortiselock/lock"
)

var z114 = Lock{
	ID: "Z114", Title: "a try whose deadline ends the hold",
	Summary: "The deadline of the call is taken for the time to hold, where the call does not wait.",
	Seen:    "Try functions without a wait, whose context can't be for anything else, their authors think.",
	Instead: "The context bounds the call. How long to hold is an option.",
	File:    "try_until_deadline.go", Over: Memory,
	Rule: "HoldOutlivesAcquireCtx",
	Also: []string{"CancelDuring"},
	On:   asLocker(func(l *lock.Client) lock.Locker { return untilDeadline{policy{l}} }),
}

// untilDeadline holds until the deadline of the context of the try.
//
//	A: ctx, cancel := context.WithTimeout(ctx, 2*time.Second); defer cancel()
//	A: TryAcquire(ctx, "import") -> granted
//	two seconds later the key is free, and A works on
//
// Caught by HoldOutlivesAcquireCtx, which gives a try a context with a deadline.
type untilDeadline struct{ policy }

// TryAcquire implements lock.Locker.
func (u untilDeadline) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	lease, err := u.policy.TryAcquire(ctx, key, opts...)
	if d, bounded := ctx.Deadline(); bounded && err == nil {
		t := time.AfterFunc(time.Until(d), func() { _ = lease.Release(context.Background()) })
		context.AfterFunc(lease.Context(), func() { t.Stop() })
	}
	return lease, err
}
