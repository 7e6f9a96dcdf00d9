package rules_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// Mutants that are right as long as nobody gives them the context of a lease.

// ownLeases knows the contexts of the leases of a Locker that have not ended.
type ownLeases struct{ contexts sync.Map }

// add takes note of a lease, and reports whether ctx is the context of another one.
func (o *ownLeases) add(ctx context.Context, l *leaseMutant) (under bool) {
	_, under = o.contexts.Load(ctx)
	own := l.Lease.Context()
	o.contexts.Store(own, true)
	context.AfterFunc(own, func() { o.contexts.Delete(own) })
	return under
}

// ownRelease changes a release whose context is that of the lease, or was made from it.
func ownRelease(made bool, release func(ctx context.Context, l *leaseMutant, end context.CancelCauseFunc) error) func() func(*lockerMutant, backend.Backend) {
	return alone(func(m *lockerMutant, _ backend.Backend) {
		type of struct{ lease *leaseMutant }
		m.lease = func(_ context.Context, l *leaseMutant) {
			inner := l.Lease.Context()
			own, end := context.WithCancelCause(context.WithValue(context.Background(), of{l}, true))
			l.ctx = own
			context.AfterFunc(inner, func() { end(context.Cause(inner)) })
			var once sync.Once
			l.release = func(ctx context.Context) (err error) {
				if ctx.Err() != nil || ctx.Value(of{l}) == nil || (ctx != own) != made {
					err = l.Lease.Release(ctx)
					end(context.Cause(inner))
					return err
				}
				err = lock.ErrNotHeld
				once.Do(func() { err = release(ctx, l, end) })
				return err
			}
		}
	})
}

// cancelsItself is a release that ends its own context, and is done in the background then.
func cancelsItself(ctx context.Context, l *leaseMutant, end context.CancelCauseFunc) error {
	end(lock.ErrReleased)
	go func() {
		time.Sleep(3 * time.Second)
		_ = l.Lease.Release(context.Background())
	}()
	return fmt.Errorf("%w: %w", lock.ErrOutcomeUnknown, ctx.Err())
}

// saysSo is a release that is done, and returns the error of its context.
func saysSo(ctx context.Context, l *leaseMutant, end context.CancelCauseFunc) error {
	err := l.Lease.Release(ctx)
	end(lock.ErrReleased)
	if err == nil {
		err = ctx.Err()
	}
	return err
}

// endsWithItsCall has the lease end when that lease ends whose context its call was given, if the
// cause matches.
func endsWithItsCall(matches func(cause error) bool) func() func(*lockerMutant, backend.Backend) {
	return alone(func(m *lockerMutant, _ backend.Backend) {
		var leases ownLeases
		m.lease = func(ctx context.Context, l *leaseMutant) {
			if leases.add(ctx, l) {
				context.AfterFunc(ctx, func() {
					if matches(context.Cause(ctx)) {
						_ = l.Lease.Release(context.Background())
					}
				})
			}
		}
	})
}

var contextsOfLeases = map[string]waitMutant{
	"a release with the context of its lease cancels itself":        {rule: "ReleaseDetached", says: "Release with the context of its lease returned", change: ownRelease(false, cancelsItself)},
	"a release with a context made from its lease's cancels itself": {rule: "ReleaseDetached", says: "Release with a context made from that of its lease returned", change: ownRelease(true, cancelsItself)},
	"a release with the context of its lease returns its error":     {rule: "ReleaseDetached", says: "Release with the context of its lease returned", change: ownRelease(false, saysSo)},
	"a lease ends with the release of the lease whose context it was acquired with": {
		rule: "HoldOutlivesAcquireCtx", says: "has been released", change: endsWithItsCall(func(cause error) bool { return errors.Is(cause, lock.ErrReleased) }),
	},
	"a lease ends with the loss of the lease whose context it was acquired with": {
		rule: "HoldOutlivesAcquireCtx", says: "has reached its maximum hold", change: endsWithItsCall(func(cause error) bool { return errors.Is(cause, lock.ErrLost) }),
	},
	"a lease is not renewed when the lease has ended whose context it was acquired with": {rule: "HoldOutlivesAcquireCtx", says: "with whose context it was acquired", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var leases ownLeases
		renewing(m, func(l *leaseMutant) bool { return l.call != nil && l.call.Err() != nil })
		renews := m.lease
		m.lease = func(ctx context.Context, l *leaseMutant) {
			if leases.add(ctx, l) {
				l.call = ctx
			}
			renews(ctx, l)
		}
	})},
	"a wait that ends with the loss of a lease tells of that only":    {rule: "WaiterGivesUp", says: "of a lease that reached its maximum hold", change: toldCause(lock.ErrLost)},
	"a wait that ends with the release of a lease tells of that only": {rule: "WaiterGivesUp", says: "of a lease that was released", change: toldCause(lock.ErrReleased)},
}

// toldCause has a wait whose context ends for the cause return that alone.
func toldCause(of error) func() func(*lockerMutant, backend.Backend) {
	return alone(func(m *lockerMutant, _ backend.Backend) {
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, err := m.Client.Acquire(ctx, key, opts...)
			if cause := context.Cause(ctx); err != nil && ctx.Err() != nil && errors.Is(cause, of) {
				return nil, fmt.Errorf("acquiring: %w", cause)
			}
			return l, err
		}
	})
}

func TestMutantsOfContextsOfLeases(t *testing.T) {
	t.Parallel()
	mustSayAll(t, contextsOfLeases)
}
