package flawed

import (
	"context"
	"fmt"

	"github.com/mortiselock/lock"
)

var z145 = Lock{
	ID: "Z145", Title: "a lease with the values of the call that tried",
	Summary: "Work under the lease runs with the trace and the user of a request that was answered long ago.",
	Seen:    "context.WithoutCancel of the caller's context, which ends the cancellation and keeps the values.",
	Instead: "A context of the lease's own, from context.Background.",
	File:    "values_of_try.go", Over: Memory,
	Rule: "CauseIsStable",
	On:   asLocker(func(l *lock.Client) lock.Locker { return withValues{policy{l}} }),
}

// withValues makes the lease's context from that of the call, where the call does not wait.
//
//	A, for a request of user 17: TryAcquire(ctx, "refresh") -> granted
//	A goes on in the background, under lease.Context(), for all users
//	the audit log has user 17 for each row
//
// Acquire has a context of its own, to wait with. Caught by CauseIsStable, which tries too.
type withValues struct{ policy }

// TryAcquire implements lock.Locker.
func (w withValues) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	lease, err := w.policy.TryAcquire(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	return withContext{lease, valuesOf{lease.Context(), ctx, key}}, nil
}

type valuesOf struct {
	context.Context
	call context.Context
	key  string
}

// Value implements context.Context.
func (v valuesOf) Value(key any) any {
	if x := v.Context.Value(key); x != nil {
		return x
	}
	return v.call.Value(key)
}

// Format implements fmt.Formatter, as for withContext.
func (v valuesOf) Format(s fmt.State, _ rune) { fmt.Fprint(s, "context of ", v.key) }
