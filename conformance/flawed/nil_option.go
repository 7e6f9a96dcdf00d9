package flawed

import (
	"context"

	"github.com/mortiselock/lock"
)

var z117 = Lock{
	ID: "Z117", Title: "an option that is nil",
	Summary: "A try with an option that was left out takes the program down.",
	Seen:    "Loops over the options of a call, one in each of its functions.",
	Instead: "lock.ResolveOptions, which leaves nil options out.",
	File:    "nil_option.go", Over: Memory,
	Rule: "Defaults",
	On:   asLocker(func(l *lock.Client) lock.Locker { return callsNil{policy{l}} }),
}

// callsNil applies the options in a loop.
//
//	var label lock.Option
//	if cfg.Label != "" { label = lock.WithLabel(cfg.Label) }
//	locker.TryAcquire(ctx, "import", label) -> panic: nil pointer
//
// Caught by Defaults, which gives both calls an option that is nil.
type callsNil struct{ policy }

// TryAcquire implements lock.Locker.
func (c callsNil) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	var set lock.Settings
	for _, o := range opts {
		o(&set)
	}
	return c.policy.TryAcquire(ctx, key, opts...)
}
