package flawed

import (
	"context"

	"github.com/mortiselock/lock"
)

var z80 = Lock{
	ID: "Z80", Title: "a TTL that only a try knows of",
	Summary: "Who waits for the lock gets the default TTL.",
	Seen:    "Options that reach one of two code paths; redisson/redisson#3323.",
	Instead: "One function makes the request of both.",
	File:    "acquire_ignores_ttl.go", Over: Memory,
	Rule: "AcquireKeepsTTL",
	Also: []string{"TTLRange", "HeldDetails", "MaxHoldEnds", "TTLGrain"},
	On:   asLocker(func(l *lock.Client) lock.Locker { return defaultTTL{policy{l}} }),
}

// defaultTTL waits with a loop that was written before there was an option for the TTL.
//
//	A: Acquire("import", WithTTL(5*time.Minute), WithoutRenewal()) -> granted, for 15 s
//	A: works for a minute, as it said it would
//	B: Acquire("import")                                           -> granted after 15 s
//
// The tests of the option use a try, because it does not wait. Caught by
// AcquireKeepsTTL, which asks Acquire for a TTL that is not the default.
//
// Instead: one function for both.
type defaultTTL struct{ policy }

// Acquire implements lock.Locker.
func (l defaultTTL) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return l.policy.Acquire(ctx, key, but(opts, func(s *lock.Settings) { s.TTL = 0 })...)
}

// but is the options with something changed.
func but(opts []lock.Option, change lock.Option) []lock.Option {
	return append(append([]lock.Option(nil), opts...), change)
}
