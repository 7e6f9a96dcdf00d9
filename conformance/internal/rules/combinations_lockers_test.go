package rules_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// lockerCase is a broken Locker, and what the evidence against it says.
type lockerCase struct {
	rule, says string
	change     func(m *lockerMutant)
}

// Mutants of Lockers that are right in each call, and wrong where an option, a way of
// acquiring and a state meet.
var lockersElsewhere = map[string]lockerCase{
	"a released lease has no key":                 {"HandsOut", "after Release", endedKey(lock.ErrReleased)},
	"a lease that Close has ended has no key":     {"HandsOut", "after the Close of its Locker", endedKey(lock.ErrClosed)},
	"a release makes a reached maximum a release": {"MaxHoldEnds", "after its Release", releasedAfter(lock.ErrMaxHold)},
	"a release makes a removal a release":         {"LostOnRemoval", "after its Release", releasedAfter(lock.ErrTakenOver)},
	"a try of what the Locker believes to hold asks nobody": {"LostOnRemoval", "after another client had been granted the key", func(m *lockerMutant) {
		var held sync.Map // the last leases without an owner, by key
		m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, ok := held.Load(key)
			if ok && with(opts).Owner == "" && ctx.Err() == nil && l.(lock.Lease).Context().Err() == nil {
				return nil, &lock.HeldError{Key: key}
			}
			return m.Client.TryAcquire(ctx, key, opts...)
		}
		m.lease = func(_ context.Context, l *leaseMutant) {
			if l.set.Owner == "" {
				held.Store(l.Lease.Key(), l.Lease)
			}
		}
	}},
	"Close makes a reached maximum a Close": {"MaxHoldEnds", "context.Cause, after the Close of its Locker", closedAfter(lock.ErrMaxHold)},
	"after Close a second release says closed, of what was released before": {"ReleaseTwice", "another Release, after the Close of its Locker", afterClose(func(l *leaseMutant, closed *atomic.Bool) {
		l.release = func(ctx context.Context) error {
			err := l.Lease.Release(ctx)
			if closed.Load() && errors.Is(err, lock.ErrNotHeld) && errors.Is(context.Cause(l.Lease.Context()), lock.ErrReleased) {
				return lock.ErrClosed
			}
			return err
		}
	})},
	"simultaneous releases are all well": {"ReleaseTwice", "of 6 simultaneous releases of a lease returned no error", func(m *lockerMutant) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			var begun, ended atomic.Bool
			var first error
			told := make(chan struct{})
			l.release = func(ctx context.Context) error {
				switch {
				case ended.Load():
					return l.Lease.Release(ctx)
				case begun.CompareAndSwap(false, true):
					time.Sleep(time.Millisecond) // the others begin
					first = l.Lease.Release(ctx)
					ended.Store(true)
					close(told)
				}
				<-told
				return first
			}
		}
	}},
	"after Close a renewal of a released lease says closed": {"RenewAfterRelease", "Renew, after the Close of its Locker", afterClose(func(l *leaseMutant, closed *atomic.Bool) {
		l.renew = func(ctx context.Context) error {
			if closed.Load() && errors.Is(context.Cause(l.Lease.Context()), lock.ErrReleased) {
				return lock.ErrClosed
			}
			return l.Lease.Renew(ctx)
		}
	})},
	"after Close a renewal of a lost lease says closed": {"LossEndsUse", "Renew, after the Close of its Locker", afterClose(func(l *leaseMutant, closed *atomic.Bool) {
		l.renew = func(ctx context.Context) error {
			if closed.Load() && errors.Is(context.Cause(l.Lease.Context()), lock.ErrLost) {
				return lock.ErrClosed
			}
			return l.Lease.Renew(ctx)
		}
	})},
	"a context from before a renewal does not end with a release":         {"CauseIsStable", "as it was before a Renew", contextPerRenewal},
	"a renewal by hand ends the automatic ones of an owner":               {"RenewKeeps", "was renewed once by hand", handEndsRenewal(func(l *leaseMutant) bool { return l.set.Owner != "" }, false)},
	"a renewal by hand ends the automatic ones of a maximum hold":         {"RenewKeeps", "was renewed once by hand", handEndsRenewal(func(l *leaseMutant) bool { return l.set.MaxHold > 0 }, false)},
	"a renewal with an ended context ends the automatic ones of an owner": {"RenewKeeps", "with a context that had ended", handEndsRenewal(func(l *leaseMutant) bool { return l.set.Owner != "" }, true)},
	"the release of an inner hold ends the renewals of the outer one":     {"RenewKeeps", "another hold of its owner was released", innerReleaseEndsRenewal},
	"a renewal of an inner hold renews the outermost":                     {"RenewByHand", "of hold 2 of an owner", renewsAmong(func(me *leaseMutant, all []*leaseMutant) []*leaseMutant { return all[:1] })},
	"a renewal of the outermost hold renews the last":                     {"RenewByHand", "of hold 1 of an owner", renewsAmong(func(me *leaseMutant, all []*leaseMutant) []*leaseMutant { return all[len(all)-1:] })},
	"of renewals at the same time of an owner's holds one is sent":        {"RenewByHand", "at the time of those of its other holds", oneRenewalOfOwner()},
	"a renewal by hand renews all holds of the owner":                     {"RenewByHand", "expected that to stay", renewsAmong(func(me *leaseMutant, all []*leaseMutant) []*leaseMutant { return all })},
	"an inner hold has the maximum of the outermost": {"MaxHoldEnds", "only another hold of its owner has reached its own", func(m *lockerMutant) {
		recordsOf(m, func(s *lock.Settings, outermost lock.Settings) {
			if s.MaxHold == 0 {
				s.MaxHold = outermost.MaxHold
			}
		})
	}},
	"the maximum of the outermost hold ends the inner ones": {"MaxHoldEnds", "only another hold of its owner has reached its own", outermostMaximumEndsAll},
	"an inner maximum counts from the outermost hold":       {"MaxHoldEnds", "a hold that its owner had entered ended after", innerMaximumFromOutermost},
	"a nil option ends the list": {"TTLRange", "an option that is nil", func(m *lockerMutant) {
		m.both(func(get engine.Getter) engine.Getter {
			return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				for i, o := range opts {
					if o == nil {
						opts = opts[:i]
						break
					}
				}
				return get(ctx, key, opts...)
			}
		})
	}},
	"an unrenewed lease ends with the deadline of the call":   {"HoldOutlivesAcquireCtx", "as that of the context of the call", untilDeadlineOfCall(func(s lock.Settings) bool { return s.NoRenewal })},
	"whose context ends before the hold can gives up at once": {"WaiterGivesUp", "the holder might release the key before", givesUpEarly},
	"a wait for an unrenewed lease is cancelled by Close":     {"CloseEndsWaits", "while its Locker was closed", cancelledByClose(func(s lock.Settings) bool { return s.NoRenewal })},
	"a wait for a maximum hold is cancelled by Close":         {"CloseEndsWaits", "while its Locker was closed", cancelledByClose(func(s lock.Settings) bool { return s.MaxHold > 0 })},
	"after Close a key that is held is refused as held": {"CloseEndsWaits", "Acquire of a held key on a closed Locker", func(m *lockerMutant) {
		var closed atomic.Bool
		var refused sync.Map
		m.close = func() error { defer closed.Store(true); return m.Client.Close() }
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			if _, was := refused.Load(key); was && closed.Load() {
				return nil, &lock.HeldError{Key: key}
			}
			l, err := m.Client.Acquire(ctx, key, opts...)
			if err != nil {
				refused.Store(key, true)
			}
			return l, err
		}
	}},
	"an owner who asks a closed Locker is cancelled": {"CloseEndsWaits", "on a closed Locker, for a lease with an owner", func(m *lockerMutant) {
		var closed atomic.Bool
		m.close = func() error { closed.Store(true); return m.Client.Close() }
		m.both(func(get engine.Getter) engine.Getter {
			return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				if with(opts).Owner != "" && closed.Load() {
					return nil, context.Canceled
				}
				return get(ctx, key, opts...)
			}
		})
	}},
	"an owner who waits behind another one is not told that the key is held": {"WaiterGivesUp", "expected an error that matches ErrHeld", func(m *lockerMutant) {
		behindAnotherIsNotTold(m)
		told := m.acquire
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			if with(opts).Owner == "" {
				return m.Client.Acquire(ctx, key, opts...)
			}
			return told(ctx, key, opts...)
		}
	}},
	"the first in line goes to the end after two seconds":  {"WaitOutlastsTTL", "were served in the order", goesToTheEnd},
	"a turn ends with its release, also after its maximum": {"MaxHoldEnds", "another caller of its Locker has reached its maximum", turnUntilReleased(lock.ErrMaxHold)},
	"a turn ends with its release, also after a removal":   {"LostOnRemoval", "another caller of its Locker was removed", turnUntilReleased(lock.ErrTakenOver)},
	"a renewal by hand of what was handed over is words": {"RenewByHand", "a wait behind its own Locker", handed(func(l *leaseMutant) {
		l.renew = func(ctx context.Context) error {
			if l.Lease.Context().Err() == nil {
				return nil
			}
			return l.Lease.Renew(ctx)
		}
	})},
	"a maximum that was reached gives its token away":                           {"MaxHoldEnds", "with which a maximum hold was reached", tokenAfter(lock.ErrMaxHold)},
	"who has lost a hold by a removal wakes late":                               {"LostOnRemoval", "by a hold that was removed by force", wakesLateAfter(lock.ErrTakenOver)},
	"who has lost a hold by its deadline wakes late":                            {"LossEndsUse", "by a hold that ran out", wakesLateAfter(lock.ErrExpired)},
	"who has reached a maximum wakes late":                                      {"MaxHoldEnds", "by a hold that reached its maximum", wakesLateAfter(lock.ErrMaxHold)},
	"who gives up when the holder has changed is not told that the key is held": {"WaiterGivesUp", "after the key had got another holder", changedIsNotTold},
	"who was refused at the limit may not enter any more": {"ReentrantLimit", "released one, and its next try", func(m *lockerMutant) {
		var full sync.Map
		m.both(func(get engine.Getter) engine.Getter {
			return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				if _, was := full.Load(key); was && with(opts).Owner != "" {
					return nil, lock.ErrTooManyHolds
				}
				l, err := get(ctx, key, opts...)
				if errors.Is(err, lock.ErrTooManyHolds) {
					full.Store(key, true)
				}
				return l, err
			}
		})
	}},
	"who may hold for a time only is not renewed without a TTL": {"Defaults", "a lease without lock.WithTTL, by TryAcquire, with ", func(m *lockerMutant) {
		m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			if s := with(opts); s.MaxHold > 0 && s.TTL == 0 {
				opts = append(opts, lock.WithoutRenewal())
			}
			return m.Client.TryAcquire(ctx, key, opts...)
		}
	}},
	"what was handed over is released by close":                          {"CloseEndsHolds", "expected ErrClosed", handed(func(l *leaseMutant) { l.tells(instead(lock.ErrClosed, lock.ErrReleased)) })},
	"what was handed over has a deadline after its release":              {"DeadlineEnds", "its deadline is", handed(func(l *leaseMutant) { l.remembers() })},
	"the key of what was handed over comes back changed":                 {"HandsOut", "a wait behind its own Locker", handed(func(l *leaseMutant) { l.Lease = renamed{l.Lease} })},
	"what was handed over is not released with a context that has ended": {"ReleaseDetached", "a wait behind its own Locker", handed(func(l *leaseMutant) { l.keptByEnded() })},
	"who was handed over to is told of a removal late":                   {"LostOnRemoval", "a wait behind its own Locker", handed(func(l *leaseMutant) { l.tellsLater(lock.ErrTakenOver, 20*time.Second) })},
	"the deadline of what was handed over is too late":                   {"ServerOutlivesD", "a wait behind its own Locker", handed(func(l *leaseMutant) { l.believes(40 * time.Millisecond) })},
	"what was handed over has no token after its release":                {"TokenStable", "when the lease was released", handed(func(l *leaseMutant) { l.noTokenAfter(lock.ErrReleased) })},
	"a second release of what was handed over was well": {"ReleaseTwice", "the second Release returned ok", handed(func(l *leaseMutant) {
		l.release = func(ctx context.Context) error {
			if err := l.Lease.Release(ctx); !errors.Is(err, lock.ErrNotHeld) || errors.Is(err, lock.ErrLost) {
				return err
			}
			return nil
		}
	})},
	"what was handed over ends with the context of the wait": {"HoldOutlivesAcquireCtx", "a wait behind its own Locker", handed(func(l *leaseMutant) {
		stop := context.AfterFunc(l.call, func() { _ = l.Lease.Release(context.Background()) })
		context.AfterFunc(l.Lease.Context(), func() { stop() })
	})},
	"an owner who has waited is told of a removal late": {"LostOnRemoval", "before it", waitedFor(func(l *leaseMutant) {
		if l.set.Owner != "" {
			l.tellsLater(lock.ErrTakenOver, 20*time.Second)
		}
	})},
	"what an owner has waited for is not released with a context that has ended": {"ReleaseDetached", "before it", waitedFor(func(l *leaseMutant) {
		if l.set.Owner != "" {
			l.keptByEnded()
		}
	})},
	"what an owner has waited for is not renewed": {"RenewKeeps", "before it", func(m *lockerMutant) {
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, err := m.Client.TryAcquire(ctx, key, opts...)
			if !errors.Is(err, lock.ErrHeld) {
				return l, err
			}
			return m.Client.Acquire(ctx, key, rewritten(opts, func(s *lock.Settings) { s.NoRenewal = s.NoRenewal || s.Owner != "" })...)
		}
	}},
	"an inner hold that reached its maximum counts until its release": {"MaxHoldEnds", "another one had reached its maximum", maximumCounts},
	"after a removal the next lease of the key is not renewed": {"LostOnRemoval", "of its holder's earlier lease was removed", func(m *lockerMutant) {
		var lost sync.Map
		m.settings(func(key string, s *lock.Settings) {
			if _, was := lost.Load(key); was {
				s.NoRenewal = true
			}
		})
		m.lease = func(_ context.Context, l *leaseMutant) {
			l.release = func(ctx context.Context) error {
				if errors.Is(context.Cause(l.Lease.Context()), lock.ErrTakenOver) {
					lost.Store(l.Lease.Key(), true)
				}
				return l.Lease.Release(ctx)
			}
		}
	}},
	"a renewal by hand whose context had ended moves the deadline": {"EndedContexts", "after a Renew with a context that had ended", movesDeadline(func(ctx context.Context, _ error) bool { return ctx.Err() != nil })},
	"a renewal by hand that could not be sent moves the deadline":  {"RenewTransient", "after a Renew that was not sent", movesDeadline(func(ctx context.Context, err error) bool { return errors.Is(err, lock.ErrUnavailable) })},
	"a maximum hold as long as the TTL is none": {"MaxHoldEnds", "while the lease is renewed; nothing is certain after the maximum hold", func(m *lockerMutant) {
		m.settings(func(_ string, s *lock.Settings) {
			if s.MaxHold == s.TTL {
				s.MaxHold = 0
			}
		})
	}},
	"a second lease of a key has the maximum from the first on": {"MaxHoldEnds", "leases of the same key, which were released", func(m *lockerMutant) {
		var since sync.Map
		m.settings(func(key string, s *lock.Settings) {
			if t, was := since.Load(key); was && s.MaxHold > 0 && s.Owner == "" {
				s.MaxHold = max(time.Millisecond, s.MaxHold-time.Since(t.(time.Time)))
			}
		})
		m.lease = func(_ context.Context, l *leaseMutant) {
			if l.set.MaxHold > 0 && l.set.Owner == "" {
				since.LoadOrStore(l.Lease.Key(), time.Now())
				context.AfterFunc(l.Lease.Context(), func() {
					if errors.Is(context.Cause(l.Lease.Context()), lock.ErrMaxHold) {
						since.Delete(l.Lease.Key())
					}
				})
			}
		}
	}},
	"a released lease is renewed when its Locker holds the key again": {"RenewAfterRelease", "while another lease of its Locker has the key", newest(func(l *leaseMutant, newer func() *leaseMutant) {
		l.renew = func(ctx context.Context) error {
			err := l.Lease.Renew(ctx)
			if n := newer(); n != nil && errors.Is(context.Cause(l.Lease.Context()), lock.ErrReleased) && n.Lease.Context().Err() == nil {
				return nil
			}
			return err
		}
	})},
	"the deadline of a lease that ended is that of the next one of its key": {"DeadlineEnds", "while another lease of its Locker has the key", newest(func(l *leaseMutant, newer func() *leaseMutant) {
		l.deadline = func() (time.Time, bool) {
			if n := newer(); n != nil && l.Lease.Context().Err() != nil {
				return n.Lease.Deadline()
			}
			return l.Lease.Deadline()
		}
	})},
	"the cause of a released lease becomes that of the loss of the next": {"CauseIsStable", "when the next lease of its key was lost", newest(func(l *leaseMutant, newer func() *leaseMutant) {
		l.now = func() context.Context {
			if n := newer(); n != nil && errors.Is(context.Cause(l.Lease.Context()), lock.ErrReleased) && errors.Is(context.Cause(n.Lease.Context()), lock.ErrLost) {
				return n.Lease.Context()
			}
			return l.Lease.Context()
		}
	})},
	"the deadline waits for the renewal by hand under way": {"LeaseIsLocal", "beside a Renew that hangs", func(m *lockerMutant) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			turn := turnOfRenewals(l)
			l.deadline = func() (time.Time, bool) {
				defer turn()()
				return l.Lease.Deadline()
			}
		}
	}},
	"renewals end with the context of the second call of a Locker": {"HoldOutlivesAcquireCtx", "only the contexts of earlier calls of its Locker", func(m *lockerMutant) {
		var mu sync.Mutex
		var calls []context.Context
		renewing(m, func(*leaseMutant) bool {
			mu.Lock()
			defer mu.Unlock()
			return len(calls) > 1 && calls[1].Err() != nil
		})
		for _, get := range []*engine.Getter{&m.try, &m.acquire} {
			inner := *get
			*get = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				mu.Lock()
				calls = append(calls, ctx)
				mu.Unlock()
				return inner(ctx, key, opts...)
			}
		}
	}},
	"a renewal by hand soon after another one is words": {"RenewByHand", "after the last one", func(m *lockerMutant) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			var last atomic.Pointer[time.Time]
			l.renew = func(ctx context.Context) error {
				if t := last.Load(); t != nil && l.Lease.Context().Err() == nil && ctx.Err() == nil && time.Since(*t) < l.set.TTL/4 {
					return nil
				}
				err := l.Lease.Renew(ctx)
				if err == nil {
					now := time.Now()
					last.Store(&now)
				}
				return err
			}
		}
	}},
	"guarantees are empty after Close": {"GuaranteesAreStable", "after the Close of that Locker", func(m *lockerMutant) {
		var closed atomic.Bool
		m.close = func() error { closed.Store(true); return m.Client.Close() }
		m.says = func(g backend.Guarantees) backend.Guarantees {
			if closed.Load() {
				return backend.Guarantees{}
			}
			return g
		}
	}},
}

// handed changes the leases for which Acquire had to wait behind a holder of the same Locker.
func handed(change func(l *leaseMutant)) func(m *lockerMutant) {
	type handedLease struct{ lock.Lease }
	return func(m *lockerMutant) {
		var mu sync.Mutex
		holds := map[string]lock.Lease{}
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			mu.Lock()
			behind := holds[key] != nil && with(opts).Owner == ""
			mu.Unlock()
			l, err := m.Client.Acquire(ctx, key, opts...)
			if err == nil && behind {
				l = handedLease{l}
			}
			return l, err
		}
		m.lease = func(ctx context.Context, l *leaseMutant) {
			mu.Lock()
			holds[l.Lease.Key()] = l.Lease
			mu.Unlock()
			context.AfterFunc(l.Lease.Context(), func() {
				mu.Lock()
				defer mu.Unlock()
				if holds[l.Lease.Key()] == l.Lease {
					delete(holds, l.Lease.Key())
				}
			})
			if _, ok := l.Lease.(handedLease); ok {
				l.call = ctx
				change(l)
			}
		}
	}
}

func endedKey(by error) func(m *lockerMutant) {
	return func(m *lockerMutant) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			l.key = func() string {
				if errors.Is(context.Cause(l.Lease.Context()), by) {
					return ""
				}
				return l.Lease.Key()
			}
		}
	}
}

func endedBy(cause error) context.Context {
	ctx, end := context.WithCancelCause(context.Background())
	end(cause)
	return ctx
}

func releasedAfter(loss error) func(m *lockerMutant) {
	return func(m *lockerMutant) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			var released atomic.Bool
			l.release = func(ctx context.Context) error { released.Store(true); return l.Lease.Release(ctx) }
			l.now = func() context.Context {
				if released.Load() && errors.Is(context.Cause(l.Lease.Context()), loss) {
					return endedBy(lock.ErrReleased)
				}
				return l.Lease.Context()
			}
		}
	}
}

func afterClose(change func(l *leaseMutant, closed *atomic.Bool)) func(m *lockerMutant) {
	return func(m *lockerMutant) {
		var closed atomic.Bool
		m.close = func() error { closed.Store(true); return m.Client.Close() }
		m.lease = func(_ context.Context, l *leaseMutant) { change(l, &closed) }
	}
}

func closedAfter(loss error) func(m *lockerMutant) {
	return afterClose(func(l *leaseMutant, closed *atomic.Bool) {
		l.now = func() context.Context {
			if closed.Load() && errors.Is(context.Cause(l.Lease.Context()), loss) {
				return endedBy(lock.ErrClosed)
			}
			return l.Lease.Context()
		}
	})
}

// contextPerRenewal makes a context for each renewal by hand, of which a release ends the last.
func contextPerRenewal(m *lockerMutant) {
	m.lease = func(_ context.Context, l *leaseMutant) {
		inner := l.Lease.Context()
		var mu sync.Mutex
		var now context.Context
		var end context.CancelCauseFunc
		fresh := func() {
			ctx, cancel := context.WithCancelCause(context.Background())
			now, end = ctx, cancel
			context.AfterFunc(inner, func() {
				if cause := context.Cause(inner); !errors.Is(cause, lock.ErrReleased) {
					cancel(cause)
				}
			})
		}
		fresh()
		l.now = func() context.Context {
			mu.Lock()
			defer mu.Unlock()
			if inner.Err() != nil {
				end(context.Cause(inner))
			}
			return now
		}
		l.renew = func(ctx context.Context) error {
			err := l.Lease.Renew(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				fresh()
			}
			return err
		}
		l.release = func(ctx context.Context) error {
			err := l.Lease.Release(ctx)
			mu.Lock()
			defer mu.Unlock()
			end(context.Cause(inner))
			return err
		}
	}
}

// renewing has leases renewed unless it is paused for them.
func renewing(m *lockerMutant, paused func(l *leaseMutant) bool) {
	m.both(func(get engine.Getter) engine.Getter {
		return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			return get(ctx, key, rewritten(opts, func(s *lock.Settings) { s.NoRenewal = true })...)
		}
	})
	m.lease = func(_ context.Context, l *leaseMutant) {
		if l.set.NoRenewal {
			return
		}
		first, _ := l.Lease.Deadline()
		every := time.NewTicker(max(time.Until(first)/3, time.Millisecond))
		go func() {
			defer every.Stop()
			for {
				select {
				case <-every.C:
					if !paused(l) {
						_ = l.Lease.Renew(context.Background())
					}
				case <-l.Lease.Context().Done():
					return
				}
			}
		}()
	}
}

// handEndsRenewal has a renewal by hand, or one whose context has ended, be the last.
func handEndsRenewal(matches func(l *leaseMutant) bool, ended bool) func(m *lockerMutant) {
	return func(m *lockerMutant) {
		var stopped sync.Map
		renewing(m, func(l *leaseMutant) bool { _, ok := stopped.Load(l); return ok })
		renews := m.lease
		m.lease = func(ctx context.Context, l *leaseMutant) {
			renews(ctx, l)
			if !matches(l) {
				return
			}
			context.AfterFunc(l.Lease.Context(), func() { stopped.Delete(l) })
			l.renew = func(ctx context.Context) error {
				if !ended || ctx.Err() != nil {
					stopped.Store(l, true)
				}
				return l.Lease.Renew(ctx)
			}
		}
	}
}

// innerReleaseEndsRenewal ends the renewals of a record with the release of one who entered.
func innerReleaseEndsRenewal(m *lockerMutant) {
	var mu sync.Mutex
	holds, stopped := map[string]int{}, map[string]bool{}
	renewing(m, func(l *leaseMutant) bool {
		mu.Lock()
		defer mu.Unlock()
		return stopped[l.Lease.Key()]
	})
	renews := m.lease
	m.lease = func(ctx context.Context, l *leaseMutant) {
		renews(ctx, l)
		if l.set.Owner == "" {
			return
		}
		key := l.Lease.Key()
		mu.Lock()
		holds[key]++
		outermost := holds[key] == 1
		mu.Unlock()
		context.AfterFunc(l.Lease.Context(), func() {
			mu.Lock()
			defer mu.Unlock()
			stopped[key] = !outermost && errors.Is(context.Cause(l.Lease.Context()), lock.ErrReleased)
			if holds[key]--; holds[key] == 0 {
				delete(holds, key)
				delete(stopped, key)
			}
		})
	}
}

// renewsAmong has a renewal by hand renew others of the owner's leases, in the order of their
// grants.
func renewsAmong(which func(me *leaseMutant, all []*leaseMutant) []*leaseMutant) func(m *lockerMutant) {
	return func(m *lockerMutant) {
		var mu sync.Mutex
		holds := map[string][]*leaseMutant{}
		m.lease = func(_ context.Context, l *leaseMutant) {
			if l.set.Owner == "" {
				return
			}
			id := l.Lease.Key() + "\x00" + l.set.Owner
			mu.Lock()
			holds[id] = append(holds[id], l)
			mu.Unlock()
			context.AfterFunc(l.Lease.Context(), func() {
				mu.Lock()
				defer mu.Unlock()
				holds[id] = slices.DeleteFunc(holds[id], func(h *leaseMutant) bool { return h == l })
				if len(holds[id]) == 0 {
					delete(holds, id)
				}
			})
			l.renew = func(ctx context.Context) error {
				mu.Lock()
				all := slices.DeleteFunc(slices.Clone(holds[id]), func(h *leaseMutant) bool { return h.Lease.Context().Err() != nil })
				mu.Unlock()
				if l.Lease.Context().Err() != nil || len(all) == 0 {
					return l.Lease.Renew(ctx)
				}
				var err error
				for _, h := range which(l, all) {
					err = errors.Join(err, h.Lease.Renew(ctx))
				}
				return err
			}
		}
	}
}

func outermostMaximumEndsAll(m *lockerMutant) {
	var mu sync.Mutex
	holds := map[string][]*leaseMutant{}
	m.lease = func(_ context.Context, l *leaseMutant) {
		if l.set.Owner == "" {
			return
		}
		id := l.Lease.Key() + "\x00" + l.set.Owner
		mu.Lock()
		holds[id] = append(holds[id], l)
		outermost := len(holds[id]) == 1
		mu.Unlock()
		context.AfterFunc(l.Lease.Context(), func() {
			mu.Lock()
			holds[id] = slices.DeleteFunc(holds[id], func(h *leaseMutant) bool { return h == l })
			left := slices.Clone(holds[id])
			if len(left) == 0 {
				delete(holds, id)
			}
			mu.Unlock()
			if outermost && errors.Is(context.Cause(l.Lease.Context()), lock.ErrMaxHold) {
				for _, h := range left {
					_ = h.Lease.Release(context.Background())
				}
			}
		})
	}
}

func innerMaximumFromOutermost(m *lockerMutant) {
	var mu sync.Mutex
	since := map[string]time.Time{}
	m.both(func(get engine.Getter) engine.Getter {
		return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			set := with(opts)
			if set.Owner == "" {
				return get(ctx, key, opts...)
			}
			id := key + "\x00" + set.Owner
			mu.Lock()
			first, entered := since[id]
			mu.Unlock()
			if entered && set.MaxHold > 0 {
				opts = rewritten(opts, func(s *lock.Settings) { s.MaxHold = max(time.Millisecond, s.MaxHold-time.Since(first)) })
			}
			l, err := get(ctx, key, opts...)
			if err == nil && !entered {
				mu.Lock()
				since[id] = time.Now()
				mu.Unlock()
				context.AfterFunc(l.Context(), func() {
					mu.Lock()
					defer mu.Unlock()
					delete(since, id)
				})
			}
			return l, err
		}
	})
}

// untilDeadlineOfCall cuts the TTL to what is left for the call.
func untilDeadlineOfCall(matches func(s lock.Settings) bool) func(m *lockerMutant) {
	return func(m *lockerMutant) {
		m.both(func(get engine.Getter) engine.Getter {
			return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				if d, timed := ctx.Deadline(); timed && time.Until(d) > m.Client.Guarantees().MinTTL {
					opts = rewritten(opts, func(s *lock.Settings) {
						if matches(*s) && s.TTL > 0 {
							s.TTL = min(s.TTL, time.Until(d).Truncate(time.Millisecond))
						}
					})
				}
				return get(ctx, key, opts...)
			}
		})
	}
}

func givesUpEarly(m *lockerMutant) {
	m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
		d, timed := ctx.Deadline()
		if !timed || ctx.Err() != nil {
			return m.Client.Acquire(ctx, key, opts...)
		}
		l, err := m.Client.TryAcquire(ctx, key, opts...)
		var held *lock.HeldError
		switch {
		case !errors.Is(err, lock.ErrHeld):
			return l, err
		case errors.As(err, &held) && held.Remaining > time.Until(d):
			return nil, fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
		}
		return m.Client.Acquire(ctx, key, opts...)
	}
}

func cancelledByClose(matches func(s lock.Settings) bool) func(m *lockerMutant) {
	return func(m *lockerMutant) {
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, err := m.Client.Acquire(ctx, key, opts...)
			if errors.Is(err, lock.ErrClosed) && matches(with(opts)) {
				err = context.Canceled
			}
			return l, err
		}
	}
}

// goesToTheEnd has who has been the first in line for long wait behind the others again.
func goesToTheEnd(m *lockerMutant) {
	m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
		for {
			slice, stop := context.WithTimeout(ctx, 2*time.Second)
			l, err := m.Client.Acquire(slice, key, opts...)
			again := err != nil && slice.Err() != nil && ctx.Err() == nil
			stop()
			if !again {
				return l, err
			}
		}
	}
}

// turnUntilReleased has callers of one Locker wait for the release of a lease of it that was
// lost so.
func turnUntilReleased(loss error) func(m *lockerMutant) {
	return func(m *lockerMutant) {
		var mu sync.Mutex
		holds := map[string]chan struct{}{} // closed when the turn ends
		closed := make(chan struct{})
		var once sync.Once
		m.close = func() error { once.Do(func() { close(closed) }); return m.Client.Close() }
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			mu.Lock()
			turn := holds[key]
			mu.Unlock()
			l, err := m.Client.Acquire(ctx, key, opts...)
			if err != nil || turn == nil || with(opts).Owner != "" {
				return l, err
			}
			select {
			case <-turn:
				return l, nil
			case <-ctx.Done():
				err = fmt.Errorf("%w: %w", &lock.HeldError{Key: key}, ctx.Err())
			case <-closed:
				err = lock.ErrClosed
			}
			_ = l.Release(ctx)
			return nil, err
		}
		m.lease = func(_ context.Context, l *leaseMutant) {
			if l.set.Owner != "" {
				return
			}
			key, turn := l.Lease.Key(), make(chan struct{})
			var ends sync.Once
			over := func() {
				ends.Do(func() {
					mu.Lock()
					if holds[key] == turn {
						delete(holds, key)
					}
					mu.Unlock()
					close(turn)
				})
			}
			mu.Lock()
			holds[key] = turn
			mu.Unlock()
			context.AfterFunc(l.Lease.Context(), func() {
				if !errors.Is(context.Cause(l.Lease.Context()), loss) {
					over()
				}
			})
			l.release = func(ctx context.Context) error { defer over(); return l.Lease.Release(ctx) }
		}
	}
}

// tokenAfter gives the token of a hold that was lost so to the next hold of the same Locker.
func tokenAfter(loss error) func(m *lockerMutant) {
	return func(m *lockerMutant) {
		var tokens sync.Map
		m.lease = func(_ context.Context, l *leaseMutant) {
			key, token := l.Lease.Key(), l.Lease.Token()
			if last, ok := tokens.LoadAndDelete(key); ok && l.set.Owner == "" {
				l.token = func() uint64 { return last.(uint64) }
			}
			context.AfterFunc(l.Lease.Context(), func() {
				if errors.Is(context.Cause(l.Lease.Context()), loss) {
					tokens.Store(key, token)
				}
			})
		}
	}
}

// wakesLateAfter has a wait that begins after such a loss of the key end 20 s late.
func wakesLateAfter(loss error) func(m *lockerMutant) {
	return func(m *lockerMutant) {
		var lost sync.Map
		m.lease = func(_ context.Context, l *leaseMutant) {
			context.AfterFunc(l.Lease.Context(), func() {
				if errors.Is(context.Cause(l.Lease.Context()), loss) {
					lost.Store(l.Lease.Key(), true)
				}
			})
		}
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			if _, was := lost.Load(key); was && ctx.Err() == nil {
				l, err := m.Client.TryAcquire(ctx, key, opts...)
				if !errors.Is(err, lock.ErrHeld) {
					return l, err
				}
				select {
				case <-time.After(20 * time.Second):
				case <-ctx.Done():
				}
			}
			return m.Client.Acquire(ctx, key, opts...)
		}
	}
}

// changedIsNotTold is a wait whose error says that the key is held if its first holder still has
// it.
func changedIsNotTold(m *lockerMutant) {
	m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
		token := func() uint64 {
			rec, _ := ability[backend.Inspector](m.Backend()).Inspect(context.Background(), key)
			return rec.Token
		}
		first := token()
		l, err := m.Client.Acquire(ctx, key, opts...)
		if errors.Is(err, lock.ErrHeld) && first != 0 && token() != first {
			return nil, fmt.Errorf("lock: waiting: %w", ctx.Err())
		}
		return l, err
	}
}

// maximumCounts has a hold that its owner had entered keep the key when its maximum is reached.
func maximumCounts(m *lockerMutant) {
	var mu sync.Mutex
	holds := map[string]int{}
	m.lease = func(_ context.Context, l *leaseMutant) {
		if l.set.Owner == "" {
			return
		}
		id := l.Lease.Key() + "\x00" + l.set.Owner
		mu.Lock()
		holds[id]++
		mu.Unlock()
		var stays atomic.Pointer[lock.Lease]
		context.AfterFunc(l.Lease.Context(), func() {
			mu.Lock()
			holds[id]--
			left := holds[id]
			if left == 0 {
				delete(holds, id)
			}
			mu.Unlock()
			if left > 0 && errors.Is(context.Cause(l.Lease.Context()), lock.ErrMaxHold) {
				if h, err := m.Client.TryAcquire(context.Background(), l.Lease.Key(), lock.WithOwner(l.set.Owner)); err == nil {
					stays.Store(&h)
				}
			}
		})
		l.release = func(ctx context.Context) error {
			if h := stays.Swap(nil); h != nil {
				_ = (*h).Release(ctx)
			}
			return l.Lease.Release(ctx)
		}
	}
}

func TestMutantsOfLockersElsewhere(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for name, c := range lockersElsewhere {
		atOnce(t, &all, name, func(t *testing.T) {
			mustSay(t, wrapped(func(m *lockerMutant, _ backend.Backend) { c.change(m) }), c.rule, c.says)
		})
	}
	all.Wait()
}

// settings changes what both ways of acquiring are asked for.
func (m *lockerMutant) settings(f func(key string, s *lock.Settings)) {
	m.both(func(get engine.Getter) engine.Getter {
		return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			return get(ctx, key, rewritten(opts, func(s *lock.Settings) { f(key, s) })...)
		}
	})
}

// newest has a Locker know the last lease of each key only.
func newest(change func(l *leaseMutant, newer func() *leaseMutant)) func(m *lockerMutant) {
	return func(m *lockerMutant) {
		var mu sync.Mutex
		last := map[string]*leaseMutant{}
		m.lease = func(_ context.Context, l *leaseMutant) {
			if l.set.Owner != "" {
				return
			}
			mu.Lock()
			last[l.Lease.Key()] = l
			mu.Unlock()
			change(l, func() *leaseMutant {
				mu.Lock()
				defer mu.Unlock()
				if n := last[l.Lease.Key()]; n != l {
					return n
				}
				return nil
			})
		}
	}
}

// movesDeadline has renewals by hand that fail so move the deadline.
func movesDeadline(so func(ctx context.Context, err error) bool) func(m *lockerMutant) {
	return func(m *lockerMutant) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			var moved atomic.Pointer[time.Time]
			l.renew = func(ctx context.Context) error {
				err := l.Lease.Renew(ctx)
				if err != nil && l.Lease.Context().Err() == nil && so(ctx, err) {
					d := time.Now().Add(backend.ValidFor(l.set.TTL))
					moved.Store(&d)
				}
				return err
			}
			l.deadline = func() (time.Time, bool) {
				d, ok := l.Lease.Deadline()
				if p := moved.Load(); p != nil && l.Lease.Context().Err() == nil && p.After(d) {
					return *p, ok
				}
				return d, ok
			}
		}
	}
}

// ahead tells a caller how many wait for the key through its Locker.
func ahead(m *lockerMutant, wait func(n int, first lock.Settings, ctx context.Context, key string, opts []lock.Option) (lock.Lease, error)) {
	var mu sync.Mutex
	lines := map[string][]*lock.Settings{}
	m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
		me := with(opts)
		mu.Lock()
		n, first := len(lines[key]), me
		if n > 0 {
			first = *lines[key][0]
		}
		lines[key] = append(lines[key], &me)
		mu.Unlock()
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			if lines[key] = slices.DeleteFunc(lines[key], func(s *lock.Settings) bool { return s == &me }); len(lines[key]) == 0 {
				delete(lines, key)
			}
		}()
		return wait(n, first, ctx, key, opts)
	}
}

// oneRenewalOfOwner has renewals by hand of an owner's holds share one request, for the first.
func oneRenewalOfOwner() func(m *lockerMutant) {
	return func(m *lockerMutant) {
		var under sync.Map // renewals that are on their way, by key and owner
		m.lease = func(_ context.Context, l *leaseMutant) {
			if l.set.Owner == "" {
				return
			}
			id := l.Lease.Key() + "\x00" + l.set.Owner
			l.renew = func(ctx context.Context) error {
				mine := make(chan struct{})
				if first, loaded := under.LoadOrStore(id, mine); loaded {
					<-first.(chan struct{})
					return nil
				}
				time.Sleep(time.Millisecond) // the others begin
				err := l.Lease.Renew(ctx)
				under.Delete(id)
				close(mine)
				return err
			}
		}
	}
}
