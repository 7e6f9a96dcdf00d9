package rules_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// Mutants of Lockers that are right with one lease and one call, and wrong beside an earlier
// lease, another Locker, or a call that hangs.

// oldCallStops has a call of a lease that has ended stop the renewals of the next one of its key.
func oldCallStops(release, renew bool) func() func(*lockerMutant, backend.Backend) {
	return alone(func(m *lockerMutant, _ backend.Backend) {
		var stopped sync.Map
		newest(func(l *leaseMutant, newer func() *leaseMutant) {
			stop := func(does bool) {
				if next := newer(); does && next != nil && l.Lease.Context().Err() != nil {
					stopped.Store(next, true)
				}
			}
			l.release = func(ctx context.Context) error {
				stop(release)
				return l.Lease.Release(ctx)
			}
			l.renew = func(ctx context.Context) error {
				stop(renew)
				return l.Lease.Renew(ctx)
			}
		})(m)
		changed := m.lease
		renewing(m, func(l *leaseMutant) bool { _, ok := stopped.Load(l); return ok })
		renewed := m.lease
		m.lease = func(ctx context.Context, l *leaseMutant) {
			changed(ctx, l)
			renewed(ctx, l)
		}
	})
}

var besideLockers = map[string]waitMutant{
	"the release of a lost lease stops the renewals of its key": {rule: "LossEndsUse", says: "only Release of an earlier lease of its Locker", change: oldCallStops(true, false)},
	"a Renew of a lost lease stops the renewals of its key":     {rule: "LossEndsUse", says: "only Renew of an earlier lease of its Locker", change: oldCallStops(false, true)},
	"the refusals of a key are one value": {rule: "HeldDetails", says: "because of its next holder", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var mu sync.Mutex
		last := map[string]*lock.HeldError{}
		m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, err := m.Client.TryAcquire(ctx, key, opts...)
			held := (*lock.HeldError)(nil)
			if !errors.As(err, &held) {
				return l, err
			}
			mu.Lock()
			defer mu.Unlock()
			if last[key] == nil {
				last[key] = &lock.HeldError{}
			}
			*last[key] = *held
			return nil, last[key]
		}
	})},
	"a lease is renewed until its release is confirmed": {rule: "ReleaseUnknown", says: "Renew after a Release whose request did not reach the server", change: alone(func(m *lockerMutant, b backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			held, _ := lock.HeldOn[backend.Backend](l.Lease)
			var unsettled atomic.Bool
			l.release = func(ctx context.Context) error {
				err := l.Lease.Release(ctx)
				unsettled.Store(errors.Is(err, lock.ErrOutcomeUnknown))
				return err
			}
			l.renew = func(ctx context.Context) error {
				if unsettled.Load() {
					if _, err := b.Renew(ctx, held.Hold); err == nil {
						return nil
					}
				}
				return l.Lease.Renew(ctx)
			}
		}
	})},
	"what is renewed is in a map of all Lockers, by key and owner": {rule: "ReentrantOtherLocker", says: "through another Locker", change: func() func(*lockerMutant, backend.Backend) {
		var renewed sync.Map
		return func(m *lockerMutant, _ backend.Backend) {
			renewing(m, func(l *leaseMutant) bool {
				_, ok := renewed.Load([2]string{l.Key(), l.set.Owner})
				return !ok
			})
			renews := m.lease
			m.lease = func(ctx context.Context, l *leaseMutant) {
				id := [2]string{l.Key(), l.set.Owner}
				renewed.Store(id, true)
				l.release = func(ctx context.Context) error {
					renewed.Delete(id)
					return l.Lease.Release(ctx)
				}
				renews(ctx, l)
			}
		}
	}},
	"a Renew that fails postpones the next renewal": {rule: "RenewKeeps", says: "each Renew by hand had a context that had ended", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var until sync.Map
		renewing(m, func(l *leaseMutant) bool {
			t, ok := until.Load(l)
			return ok && time.Now().Before(t.(time.Time))
		})
		renews := m.lease
		m.lease = func(ctx context.Context, l *leaseMutant) {
			l.renew = func(ctx context.Context) error {
				until.Store(l, time.Now().Add(l.set.TTL/3))
				return l.Lease.Renew(ctx)
			}
			renews(ctx, l)
		}
	})},
	"a Renew that fails puts back the deadline from before it": {rule: "DeadlineEnds", says: "the failure of a Renew that had hung", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			var back atomic.Pointer[time.Time]
			l.renew = func(ctx context.Context) error {
				old, _ := l.Lease.Deadline()
				began := l.Lease.Context().Err() == nil
				err := l.Lease.Renew(ctx)
				if ended := context.Cause(l.Lease.Context()); err != nil && began && (errors.Is(ended, lock.ErrReleased) || errors.Is(ended, lock.ErrClosed)) {
					back.Store(&old)
				}
				return err
			}
			l.deadline = func() (time.Time, bool) {
				if d := back.Load(); d != nil {
					return *d, true
				}
				return l.Lease.Deadline()
			}
		}
	})},
	"the end of a maximum hold waits for the renewal by hand under way": {rule: "MaxHoldEnds", says: "beside a Renew that hangs", change: alone(func(m *lockerMutant, b backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			held, err := lock.HeldOn[backend.Backend](l.Lease)
			if err != nil || l.set.MaxHold == 0 {
				return
			}
			turn := turnOfRenewals(l)
			l.renew = func(ctx context.Context) error {
				defer turn()()
				if _, err := b.Renew(ctx, held.Hold); err != nil && ctx.Err() != nil {
					return err
				}
				return l.Lease.Renew(ctx)
			}
			toldLater(l, func(cause error) time.Duration {
				if errors.Is(cause, lock.ErrMaxHold) {
					turn()()
				}
				return 0
			})
		}
	})},
	"Close waits for the renewals by hand under way": {rule: "CallsAreBounded", says: "Close beside a Renew that hangs", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var under atomic.Int64
		m.lease = func(_ context.Context, l *leaseMutant) {
			l.renew = func(ctx context.Context) error {
				under.Add(1)
				defer under.Add(-1)
				return l.Lease.Renew(ctx)
			}
		}
		m.close = func() error {
			for under.Load() > 0 {
				time.Sleep(5 * time.Millisecond)
			}
			return m.Client.Close()
		}
	})},
}

func TestMutantsBeside(t *testing.T) {
	t.Parallel()
	mustSayAll(t, besideLockers)
}
