package flawed

import (
	"context"
	"sync/atomic"

	"github.com/mortiselock/lock"
)

var z87 = Lock{
	ID: "Z87", Title: "a release that frees first and tells its holder afterwards",
	Summary: "The holder's workers, who watch the lease, go on beside the next holder's.",
	Seen:    "Lines such as err := del(key); cancel(). kubernetes/client-go#728, kubernetes/kubernetes#139991.",
	Instead: "End the context, then tell the server.",
	File:    "release_frees_first.go", Over: Memory,
	Rule: "ContextEndsFirst",
	On:   asLocker(func(l *lock.Client) lock.Locker { return freesFirst{policy{l}} }),
}

// freesFirst ends the lease's context when the server has confirmed the release.
//
//	A: starts a worker with the lease's context; the shutdown begins, and releases job
//	A: DEL job is applied, and the answer is under way
//	B: SET job b NX PX 10000 -> OK; B works
//	A's worker: asks ctx.Err() -> nil, and writes once more
//	A: the answer arrives; the context ends
//
// With a fast network it is a gap of less than a millisecond. Caught by
// ContextEndsFirst, which asks for the key all the time, and looks at the earlier lease
// at once.
//
// Instead: the other order. A context that has ended too early does no harm.
type freesFirst struct{ policy }

// Acquire implements lock.Locker.
func (l freesFirst) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return toldLast(l.policy.Acquire(ctx, key, opts...))
}

// TryAcquire implements lock.Locker.
func (l freesFirst) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return toldLast(l.policy.TryAcquire(ctx, key, opts...))
}

func toldLast(lease lock.Lease, err error) (lock.Lease, error) {
	if err != nil {
		return nil, err
	}
	l := &lastToKnow{releasing: new(atomic.Bool)}
	l.withContext, l.end = ownContext(lease, func(error) bool { return !l.releasing.Load() })
	return l, nil
}

// ownContext is a lease with a context that ends with its own, if ends says so of the
// cause, and otherwise with end.
func ownContext(lease lock.Lease, ends func(cause error) bool) (l withContext, end context.CancelCauseFunc) {
	ctx, end := context.WithCancelCause(context.Background())
	inner := lease.Context()
	follow := func() {
		if inner.Err() != nil && ends(context.Cause(inner)) {
			end(context.Cause(inner))
		}
	}
	context.AfterFunc(inner, follow)
	return withContext{lease, following{ctx, follow}}, end
}

// following is a context that looks at another one first.
type following struct {
	context.Context
	follow func()
}

// Err implements context.Context.
func (f following) Err() error {
	f.follow()
	return f.Context.Err()
}

type lastToKnow struct {
	withContext
	releasing *atomic.Bool
	end       context.CancelCauseFunc
}

// Release implements lock.Lease.
func (l *lastToKnow) Release(ctx context.Context) error {
	l.releasing.Store(true)
	err := l.Lease.Release(ctx)
	if err == nil {
		dawdle() // the answer is under way
	}
	l.end(context.Cause(l.Lease.Context()))
	return err
}
