package rules_test

import (
	"cmp"
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

// deadlineOfLastAnswer has the deadline be that of the Renew which was answered last, for the TTL.
func deadlineOfLastAnswer(l *leaseMutant, ttl time.Duration) {
	var last atomic.Pointer[time.Time]
	l.renew = func(ctx context.Context) error {
		sent := time.Now()
		err := l.Lease.Renew(ctx)
		if err == nil {
			until := sent.Add(backend.ValidFor(ttl))
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
			deadlineOfLastAnswer(l, l.set.TTL)
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
	"of releases of a lost lease at once the others are well": {rule: "ReleaseReportsLoss", says: "one of 4 simultaneous releases", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			var begun, done atomic.Bool
			l.release = func(ctx context.Context) error {
				switch {
				case !errors.Is(context.Cause(l.Lease.Context()), lock.ErrLost) || done.Load():
					return l.Lease.Release(ctx)
				case begun.CompareAndSwap(false, true):
					defer done.Store(true)
					time.Sleep(time.Millisecond) // the others begin
					return l.Lease.Release(ctx)
				}
				return nil
			}
		}
	})},
	"the answer to a release with an ended context is not looked at": {rule: "ReleaseReportsLoss", says: "with a context that had ended", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			var sent atomic.Bool
			l.release = func(ctx context.Context) error {
				unheard := ctx.Err() != nil && l.Lease.Context().Err() == nil && !sent.Swap(true)
				if err := l.Lease.Release(ctx); !unheard {
					return err
				}
				return nil
			}
		}
	})},
	"what ends soon is not released with an ended context": {rule: "ReleaseDetached", says: "before it would have run out", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			l.release = func(ctx context.Context) error {
				d, _ := l.Lease.Deadline()
				if ctx.Err() == nil || !l.set.NoRenewal || l.Lease.Context().Err() != nil || time.Until(d) > cmp.Or(l.set.TTL, memory().TTL)/3 {
					return l.Lease.Release(ctx)
				}
				return nil
			}
		}
	})},
	"beside a renewal by hand the context ends after the release": {rule: "ReleaseBesideRenewal", says: "beside a Renew that hangs", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			var under atomic.Int64
			inner := l.Lease.Context()
			ctx, end := context.WithCancelCause(context.Background())
			follow := func() {
				if inner.Err() != nil && (under.Load() == 0 || !errors.Is(context.Cause(inner), lock.ErrReleased)) {
					end(context.Cause(inner))
				}
			}
			l.ctx = following{ctx, follow}
			context.AfterFunc(inner, follow)
			l.renew = func(ctx context.Context) error {
				under.Add(1)
				defer func() {
					time.Sleep(time.Millisecond) // a renewal takes its time to return
					under.Add(-1)
					follow()
				}()
				return l.Lease.Renew(ctx)
			}
		}
	})},
	"a renewal by hand leaves its values": {rule: "CauseIsStable", says: "of the context of a Renew by hand", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			var last atomic.Pointer[valuesOf]
			l.renew = func(ctx context.Context) error {
				err := l.Lease.Renew(ctx)
				if err == nil {
					last.Store(&valuesOf{l.Lease.Context(), ctx})
				}
				return err
			}
			l.now = func() context.Context {
				if v := last.Load(); v != nil {
					return v
				}
				return l.ctx
			}
		}
	})},
	"Close renames a lease whose release is under way": {rule: "CauseIsStable", says: "while its release had no answer yet", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var closing atomic.Bool
		m.close = func() error { closing.Store(true); return m.Client.Close() }
		over := endedBy(lock.ErrClosed)
		m.lease = func(_ context.Context, l *leaseMutant) {
			var renamed atomic.Bool
			l.release = func(ctx context.Context) error {
				before := closing.Load()
				err := l.Lease.Release(ctx)
				if !before && closing.Load() && errors.Is(context.Cause(l.Lease.Context()), lock.ErrReleased) {
					renamed.Store(true)
				}
				return err
			}
			l.now = func() context.Context {
				if renamed.Load() {
					return over
				}
				return l.ctx
			}
		}
	})},
	"a removal becomes the cause of an owner's hold that was released before": {rule: "LostOnRemoval", says: "when the record of another lease of its owner was removed", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var mu sync.Mutex
		holds := map[[2]string][]lock.Lease{}
		m.lease = func(_ context.Context, l *leaseMutant) {
			id := [2]string{l.Key(), l.set.Owner}
			mu.Lock()
			holds[id] = append(holds[id], l.Lease)
			mu.Unlock()
			l.now = func() context.Context {
				if l.set.Owner == "" || !errors.Is(context.Cause(l.Lease.Context()), lock.ErrReleased) {
					return l.ctx
				}
				mu.Lock()
				defer mu.Unlock()
				for _, other := range holds[id] {
					if other.Token() == l.Lease.Token() && errors.Is(context.Cause(other.Context()), lock.ErrTakenOver) {
						return other.Context()
					}
				}
				return l.ctx
			}
		}
	})},
	"when Close could not give back, its leases keep their deadlines": {rule: "CloseUnreachable", says: "after a Close that could not release it", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var failed atomic.Bool
		m.close = func() error {
			err := m.Client.Close()
			failed.Store(errors.Is(err, lock.ErrOutcomeUnknown))
			return err
		}
		m.lease = func(_ context.Context, l *leaseMutant) {
			first, _ := l.Lease.Deadline()
			l.deadline = func() (time.Time, bool) {
				if failed.Load() && errors.Is(context.Cause(l.Lease.Context()), lock.ErrClosed) {
					return first, true
				}
				return l.Lease.Deadline()
			}
		}
	})},
	"Close hands the keys that it releases to its own waiters": {rule: "CloseEndsWaits", says: "its own Locker held was granted it", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var holds sync.Map
		m.lease = func(_ context.Context, l *leaseMutant) { holds.Store(l.Key(), l.Lease) }
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			first, ok := holds.Load(key)
			behind := ok && first.(lock.Lease).Context().Err() == nil
			l, err := m.Client.Acquire(ctx, key, opts...)
			if behind && errors.Is(err, lock.ErrClosed) && with(opts).Owner == "" {
				return first.(lock.Lease), nil
			}
			return l, err
		}
	})},
	"a renewal by hand of a lease without a TTL counts on fifteen seconds": {rule: "Defaults", says: "after a Renew by hand", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			if l.set.TTL == 0 {
				deadlineOfLastAnswer(l, lock.DefaultTTL)
			}
		}
	})},
	"a renewal by hand that the maximum cuts short says that it was reached": {rule: "MaxHoldEnds", says: "later the lease went on", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			begun, ttl := time.Now(), cmp.Or(l.set.TTL, memory().TTL)
			l.renew = func(ctx context.Context) error {
				err := l.Lease.Renew(ctx)
				if err == nil && l.set.MaxHold > 0 && time.Since(begun)+ttl > l.set.MaxHold {
					return lock.ErrMaxHold
				}
				return err
			}
		}
	})},
	"an owner who comes back by Acquire has its token again": {rule: "ReentrantSameToken", says: "outermost hold, by Acquire,", change: alone(func(m *lockerMutant, _ backend.Backend) {
		type acquired struct{ lock.Lease }
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, err := m.Client.Acquire(ctx, key, opts...)
			if err != nil {
				return nil, err
			}
			return acquired{l}, nil
		}
		var tokens sync.Map // by key and owner
		m.lease = func(_ context.Context, l *leaseMutant) {
			id := [2]string{l.Key(), l.set.Owner}
			before, again := tokens.Load(id)
			if _, by := l.Lease.(acquired); by && again && l.set.Owner != "" {
				l.token = func() uint64 { return before.(uint64) }
				return
			}
			tokens.Store(id, l.Lease.Token())
		}
	})},
	"who enters is found by the text of key and owner": {rule: "ReentrantExplicit", says: "key and owner, written one after the other", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var holds sync.Map // of key and owner, with their lease
		type hold struct {
			key, owner string
			ctx        context.Context
		}
		m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			id := key + with(opts).Owner
			if found, ok := holds.Load(id); ok && found.(hold).key != key && found.(hold).ctx.Err() == nil {
				of := found.(hold)
				return m.Client.TryAcquire(ctx, of.key, rewritten(opts, func(s *lock.Settings) { s.Owner = of.owner })...)
			}
			l, err := m.Client.TryAcquire(ctx, key, opts...)
			if err == nil {
				holds.Store(id, hold{key, with(opts).Owner, l.Context()})
			}
			return l, err
		}
	})},
	"a try waits for the release under way": {rule: "TryIsImmediate", says: "beside a release of the key", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var mu sync.Mutex
		releasing := map[string]int{}
		add := func(key string, n int) int {
			mu.Lock()
			defer mu.Unlock()
			releasing[key] += n
			return releasing[key]
		}
		m.lease = func(_ context.Context, l *leaseMutant) {
			l.release = func(ctx context.Context) error {
				add(l.Key(), 1)
				defer add(l.Key(), -1)
				return l.Lease.Release(ctx)
			}
		}
		m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			for add(key, 0) > 0 && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			return m.Client.TryAcquire(ctx, key, opts...)
		}
	})},
	"Close forgets the releases that were not confirmed": {rule: "NoLeak", says: "the outcome of a release of it", change: alone(dropsAtClose), around: func() around {
		return func(b backend.Backend) backend.Backend {
			return &drops{wrapper: wrapper{b}, drops: func(d *drops, h backend.Hold) bool { _, failed := d.failed.Load(h.ID); return failed && h.Token != 0 }}
		}
	}},
	"Close drops what is to be removed after a try without an answer": {rule: "NoLeak", says: "the outcome of a try of it", change: alone(dropsAtClose), around: func() around {
		return func(b backend.Backend) backend.Backend {
			return &drops{wrapper: wrapper{b}, drops: func(_ *drops, h backend.Hold) bool { return h.Token == 0 }}
		}
	}},
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

// valuesOf is a context with the values of another one.
type valuesOf struct {
	context.Context
	values context.Context
}

func (v *valuesOf) Value(key any) any {
	if own := v.Context.Value(key); own != nil {
		return own
	}
	return v.values.Value(key)
}

// drops says of some releases that they were confirmed, and sends nothing, once its Locker is closing.
type drops struct {
	wrapper
	closing atomic.Bool
	failed  sync.Map // ids of releases that were not confirmed
	drops   func(d *drops, h backend.Hold) bool
}

func (d *drops) Release(ctx context.Context, h backend.Hold) error {
	return d.unlessDropped(h, func() error { return d.Backend.Release(ctx, h) })
}

func (d *drops) ReleaseTelling(ctx context.Context, h backend.Hold) (others int, err error) {
	err = d.unlessDropped(h, func() (err error) {
		others, err = ability[backend.ReleaseTeller](d.Backend).ReleaseTelling(ctx, h)
		return err
	})
	return others, err
}

func (d *drops) unlessDropped(h backend.Hold, release func() error) error {
	if d.closing.Load() && d.drops(d, h) {
		return nil
	}
	err := release()
	if err != nil {
		d.failed.Store(h.ID, true)
	}
	return err
}

func dropsAtClose(m *lockerMutant, b backend.Backend) {
	m.close = func() error {
		b.(*drops).closing.Store(true)
		return m.Client.Close()
	}
}

func TestMutantsBeside(t *testing.T) {
	t.Parallel()
	mustSayAll(t, besideLockers)
}
