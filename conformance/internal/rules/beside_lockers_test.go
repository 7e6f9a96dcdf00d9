package rules_test

import (
	"context"
	"errors"
	"slices"
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
	"a Renew joins the one under way": {rule: "RenewByHand", says: "which had no answer yet, has moved the deadline by", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			var calls sharedCalls
			l.renew = func(ctx context.Context) error { return calls.join(ctx, func() error { return l.Lease.Renew(ctx) }) }
		}
	})},
	"the answer to a Renew that comes last is the deadline": {rule: "RenewByHand", says: "the deadline went back by", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			var last atomic.Pointer[time.Time]
			l.renew = func(ctx context.Context) error {
				sent := time.Now()
				err := l.Lease.Renew(ctx)
				if err == nil {
					until := sent.Add(backend.ValidFor(l.set.TTL))
					last.Store(&until)
				}
				return err
			}
			l.deadline = func() (time.Time, bool) {
				if until := last.Load(); until != nil && l.Lease.Context().Err() == nil {
					return *until, true
				}
				return l.Lease.Deadline()
			}
		}
	})},
	"a removal is heard while the context of the call goes on": {rule: "LostOnRemoval", says: "after the context of the", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.lease = func(ctx context.Context, l *leaseMutant) {
			toldLater(l, func(cause error) time.Duration {
				if errors.Is(cause, lock.ErrTakenOver) && ctx.Err() != nil {
					return l.set.TTL
				}
				return 0
			})
		}
	})},
	"renewals go on when the release at the maximum has failed": {rule: "MaxHoldEnds", says: "whose release does not get through", change: alone(func(m *lockerMutant, b backend.Backend) {
		closed := make(chan struct{})
		m.lease = func(_ context.Context, l *leaseMutant) {
			held, err := lock.HeldOn[backend.Backend](l.Lease)
			if err != nil || l.set.MaxHold == 0 {
				return
			}
			context.AfterFunc(l.Lease.Context(), func() {
				for errors.Is(context.Cause(l.Lease.Context()), lock.ErrMaxHold) {
					if _, err := b.Renew(context.Background(), held.Hold); errors.Is(err, backend.ErrNotHeld) {
						return
					}
					select {
					case <-closed:
						return
					case <-time.After(l.set.TTL / 3):
					}
				}
			})
		}
		m.close = func() error {
			close(closed)
			return m.Client.Close()
		}
	})},
	"a try that fails costs the place in line": {rule: "WaiterOrderLocal", says: "through", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var mu sync.Mutex
		lines := map[string][]*string{}
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			me := new(string)
			mu.Lock()
			lines[key] = append(lines[key], me)
			mu.Unlock()
			leave := func() { lines[key] = slices.DeleteFunc(lines[key], func(other *string) bool { return other == me }) }
			for {
				mu.Lock()
				first := lines[key][0] == me
				mu.Unlock()
				err := lock.ErrHeld
				if first {
					var l lock.Lease
					if l, err = m.Client.TryAcquire(ctx, key, opts...); err == nil || !errors.Is(err, lock.ErrHeld) && !errors.Is(err, lock.ErrUnavailable) && !errors.Is(err, lock.ErrOutcomeUnknown) {
						mu.Lock()
						leave()
						mu.Unlock()
						return l, err
					}
				}
				mu.Lock()
				if !errors.Is(err, lock.ErrHeld) {
					leave()
					lines[key] = append(lines[key], me)
				}
				mu.Unlock()
				select {
				case <-ctx.Done():
					mu.Lock()
					leave()
					mu.Unlock()
					return nil, errors.Join(lock.ErrHeld, ctx.Err())
				case <-time.After(5 * time.Millisecond):
				}
			}
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
