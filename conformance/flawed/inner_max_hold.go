package flawed

import (
	"context"
	"sync"

	"github.com/mortiselock/lock"
)

var z115 = Lock{
	ID: "Z115", Title: "a maximum hold that only the first one has",
	Summary: "An owner that enters again with a maximum keeps that hold for ever.",
	Seen:    "Re-entry that counts up and returns, before the options are looked at.",
	Instead: "Each hold has the options that it was asked with.",
	File:    "inner_max_hold.go", Over: Memory,
	Rule: "MaxHoldEnds",
	On: asLocker(func(l *lock.Client) lock.Locker {
		return &firstHas{policy: policy{l}, holds: map[string]int{}}
	}),
}

// firstHas sets the timer of the maximum with the first hold of an owner.
//
//	A: Acquire("ledger", WithOwner("batch"))
//	A, in a step that may hang: Acquire("ledger", WithOwner("batch"), WithMaxHold(time.Minute)) -> granted
//	the step hangs, and its context never ends
//
// Caught by MaxHoldEnds, which has an owner enter again.
//
// Instead: the count is one thing, the lease another.
type firstHas struct {
	policy
	mu    sync.Mutex
	holds map[string]int
}

// Acquire implements lock.Locker.
func (f *firstHas) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return f.counted(opts)(f.policy.Acquire(ctx, key, f.options(key, opts)...))
}

// TryAcquire implements lock.Locker.
func (f *firstHas) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return f.counted(opts)(f.policy.TryAcquire(ctx, key, f.options(key, opts)...))
}

func (f *firstHas) options(key string, opts []lock.Option) []lock.Option {
	f.mu.Lock()
	defer f.mu.Unlock()
	set, err := lock.ResolveOptions(opts...)
	if err != nil || f.holds[key+" "+set.Owner] == 0 {
		return opts
	}
	return but(opts, func(s *lock.Settings) { s.MaxHold = 0 })
}

// counted counts the holds of owners.
func (f *firstHas) counted(opts []lock.Option) func(lock.Lease, error) (lock.Lease, error) {
	set, _ := lock.ResolveOptions(opts...)
	return func(lease lock.Lease, err error) (lock.Lease, error) {
		if err != nil || set.Owner == "" {
			return lease, err
		}
		name := lease.Key() + " " + set.Owner
		f.mu.Lock()
		defer f.mu.Unlock()
		f.holds[name]++
		context.AfterFunc(lease.Context(), func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.holds[name]--; f.holds[name] == 0 {
				delete(f.holds, name)
			}
		})
		return lease, nil
	}
}
