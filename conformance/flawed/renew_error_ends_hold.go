package flawed

import (
	"context"
	"fmt"

	"github.com/mortiselock/lock"
)

var z76 = Lock{
	ID: "Z76", Title: "a Renew that fails in any way ends the hold",
	Summary: "A call with an ended context gives up a good hold.",
	Seen:    "Keep-alive loops that treat each error as the loss.",
	Instead: "Only the server's word, or the deadline, ends a hold.",
	File:    "renew_error_ends_hold.go", Over: Memory,
	Rule: "EndedContexts",
	On:   asLocker(func(l *lock.Client) lock.Locker { return endingAtErrors{policy{l}} }),
}

// endingAtErrors has no use for a lease that could not be renewed once.
//
//	A: holds job; a request of A's calls Renew with its own context, which has just ended
//	A: Renew -> context canceled: "we have lost the lock"; the job is stopped half-way
//	B: refused for the rest of the TTL, by a record that nobody stands behind
//
// Caught by EndedContexts. RenewTransient does not see it: there the renewals are those
// of the Locker.
//
// Instead: return the error and keep the hold.
type endingAtErrors struct{ policy }

// Acquire implements lock.Locker.
func (l endingAtErrors) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return fragile(l.policy.Acquire(ctx, key, opts...))
}

// TryAcquire implements lock.Locker.
func (l endingAtErrors) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return fragile(l.policy.TryAcquire(ctx, key, opts...))
}

func fragile(lease lock.Lease, err error) (lock.Lease, error) {
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancelCause(context.Background())
	f := &fragileLease{Lease: lease, ctx: ctx, end: end}
	context.AfterFunc(lease.Context(), func() { end(context.Cause(lease.Context())) })
	return f, nil
}

type fragileLease struct {
	lock.Lease
	ctx context.Context
	end context.CancelCauseFunc
}

// Context implements lock.Lease.
func (f *fragileLease) Context() context.Context {
	if f.Lease.Context().Err() != nil { // it looks at the clock
		f.end(context.Cause(f.Lease.Context()))
	}
	return f.ctx
}

// Release implements lock.Lease.
func (f *fragileLease) Release(ctx context.Context) error {
	err := f.Lease.Release(ctx)
	_ = f.Context()
	return err
}

// Renew implements lock.Lease.
func (f *fragileLease) Renew(ctx context.Context) error {
	err := f.Lease.Renew(ctx)
	if err != nil && f.Lease.Context().Err() == nil {
		f.end(fmt.Errorf("%w: %w", lock.ErrLost, err))
	}
	return err
}
