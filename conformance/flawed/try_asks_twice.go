package flawed

import (
	"context"
	"errors"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z144 = Lock{
	ID: "Z144", Title: "a try that asks twice",
	Summary: "Every refusal costs the server two requests, and who tries all day long doubles its load.",
	Seen:    "A first look without the lock's bookkeeping, and a second one with it; loops of retries whose smallest count is one more try.",
	Instead: "One request. Whoever wants to wait calls Acquire.",
	File:    "try_asks_twice.go", Over: Memory,
	Rule: "TryIsImmediate",
	On:   onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker { return twiceTried{policy{l}} }),
}

// twiceTried takes a refusal for what it is the second time.
//
//	A: TryAcquire("poll") -> refused by the server
//	A: asks once more     -> refused again
//	1,000 workers that poll once a second make 2,000 requests a second
//
// Nobody sees it from the time that it takes. Caught by TryIsImmediate, which counts.
type twiceTried struct{ policy }

// TryAcquire implements lock.Locker.
func (t twiceTried) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	lease, err := t.policy.TryAcquire(ctx, key, opts...)
	if errors.Is(err, lock.ErrHeld) {
		return t.policy.TryAcquire(ctx, key, opts...)
	}
	return lease, err
}
