package rules_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// Mutants of Lockers that are right the first time, or for a while.

// toldLater delays what the context of a lease tells of its end.
func toldLater(l *leaseMutant, delay func(cause error) time.Duration) {
	ctx, end := context.WithCancelCause(context.Background())
	l.ctx = ctx
	inner := l.Lease.Context()
	context.AfterFunc(inner, func() {
		cause := context.Cause(inner)
		if d := delay(cause); d > 0 {
			time.AfterFunc(d, func() { end(cause) })
			return
		}
		end(cause)
	})
	l.release = func(ctx context.Context) error {
		err := l.Lease.Release(ctx)
		end(context.Cause(inner))
		return err
	}
}

// asks changes what is asked for.
func asks(change func(key string, s *lock.Settings)) func() func(*lockerMutant, backend.Backend) {
	return alone(func(m *lockerMutant, _ backend.Backend) {
		m.both(func(get engine.Getter) engine.Getter {
			return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				return get(ctx, key, rewritten(opts, func(s *lock.Settings) { change(key, s) })...)
			}
		})
	})
}

var laterLockers = map[string]waitMutant{
	"a release with an endless context frees nothing": {rule: "EndlessContexts", says: "the key was released with context.Background()", change: endless(func(l *leaseMutant) {
		l.release = func(ctx context.Context) error {
			if ctx.Done() == nil {
				return nil
			}
			return l.Lease.Release(ctx)
		}
	}, nil)},
	"a release with an endless context waits for its answer": {rule: "CallsAreBounded", says: "Release with context.Background() had not returned", change: releasesAgain(func(ctx context.Context, _ error) bool { return ctx.Done() == nil })},
	"a release goes on while the server refuses": {rule: "CallsAreBounded", says: "with the server refusing its requests", change: releasesAgain(func(_ context.Context, err error) bool {
		return errors.Is(err, faultlock.ErrInjected) && !errors.Is(err, context.DeadlineExceeded)
	})},
	"who gives up is told of the holder at the beginning of the wait": {rule: "HeldDetails", says: "expected the present holder, or none", change: alone(func(m *lockerMutant, b backend.Backend) {
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			i, ok := backend.As[backend.Inspector](b)
			if !ok || ctx.Err() != nil {
				return m.Client.Acquire(ctx, key, opts...)
			}
			short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
			rec, unknown := i.Inspect(short, key)
			cancel()
			l, err := m.Client.Acquire(ctx, key, opts...)
			if held := (*lock.HeldError)(nil); unknown == nil && errors.As(err, &held) {
				first := *held
				first.Holder = rec.Holder
				return nil, fmt.Errorf("%w: %w", ctx.Err(), &first)
			}
			return l, err
		}
	})},
	"the first release after five quiet minutes finds its connection closed": {rule: "IdleLockerWorks", says: "Release of a lease that was held", change: func() func(*lockerMutant, backend.Backend) {
		return func(m *lockerMutant, _ backend.Backend) {
			var last atomic.Int64
			used := func() (quiet time.Duration) {
				now := time.Now().UnixMilli()
				return time.Duration(now-last.Swap(now)) * time.Millisecond
			}
			m.lease = func(_ context.Context, l *leaseMutant) {
				used()
				l.release = func(ctx context.Context) error {
					quiet := used()
					if err := l.Lease.Release(ctx); err != nil || quiet < 5*time.Minute || !l.set.NoRenewal {
						return err
					}
					return fmt.Errorf("%w: connection reset by peer", lock.ErrUnavailable)
				}
			}
		}
	}},
	"a lease is given up at its tenth failed renewal": {rule: "RenewTransient", says: "has ended with cause", around: func() around {
		return func(b backend.Backend) backend.Backend {
			return &countsFailures{Backend: b, failed: map[backend.ID]int{}}
		}
	}},
	"a lease with a shorter TTL is renewed when the next of the others is due": {rule: "RenewKeeps", says: "its TTL is shorter than that of another lease", change: alone(func(m *lockerMutant, _ backend.Backend) {
		plan := &onePlan{}
		m.both(func(get engine.Getter) engine.Getter {
			return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := get(ctx, key, rewritten(opts, func(s *lock.Settings) { s.NoRenewal = true })...)
				if s := with(opts); err == nil && !s.NoRenewal {
					plan.add(l, cmp.Or(s.TTL, memory().TTL)/3)
				}
				return l, err
			}
		})
	})},
	"a release is repeated until the first TTL has passed": {rule: "ReleaseUnknown", says: "expected it to be repeated until the lease would have expired", around: func() around {
		return func(b backend.Backend) backend.Backend {
			return &forgetsRenewals{Backend: b, ends: map[backend.ID]time.Time{}, failed: map[backend.ID]bool{}}
		}
	}},
	"a release is repeated until the context of its call ends": {
		rule: "ReleaseUnknown", says: "its release is repeated until then",
		around: func() around { return func(b backend.Backend) backend.Backend { return &callersRepeats{Backend: b} } },
		change: func() func(*lockerMutant, backend.Backend) {
			return func(m *lockerMutant, b backend.Backend) {
				m.lease = func(_ context.Context, l *leaseMutant) {
					l.release = func(ctx context.Context) error {
						err := l.Lease.Release(ctx)
						if errors.Is(err, lock.ErrOutcomeUnknown) && ctx.Err() == nil {
							context.AfterFunc(ctx, func() { b.(*callersRepeats).over.Store(l.Key(), true) })
						}
						return err
					}
				}
			}
		},
	},
	"a release of unknown outcome is so for ever": {rule: "ReleaseUnknown", says: "Release, the last of several, after the lease would have expired", change: endless(func(l *leaseMutant) {
		var said atomic.Pointer[error]
		l.release = func(ctx context.Context) error {
			if before := said.Load(); before != nil {
				return *before
			}
			err := l.Lease.Release(ctx)
			if errors.Is(err, lock.ErrOutcomeUnknown) {
				said.Store(&err)
			}
			return err
		}
	}, nil)},
	"a release after Close tells of its context only": {rule: "CloseEndsHolds", says: "Release after Close, with a context that had ended,", change: endless(func(l *leaseMutant) {
		l.release = func(ctx context.Context) error {
			err := l.Lease.Release(ctx)
			if errors.Is(err, lock.ErrClosed) && ctx.Err() != nil {
				return ctx.Err()
			}
			return err
		}
	}, nil)},
	"Close waits for the tries under way": {rule: "CallsAreBounded", says: "Close, with calls under way whose contexts live, had not returned", change: alone(func(m *lockerMutant, _ backend.Backend) {
		underWay := triesUnderWay(m)
		m.close = func() error {
			for underWay.Load() > 0 {
				time.Sleep(5 * time.Millisecond)
			}
			return m.Client.Close()
		}
	})},
	"a loss is told when no try is under way": {rule: "LostWhenCutOff", says: "had not ended", change: alone(func(m *lockerMutant, _ backend.Backend) {
		underWay := triesUnderWay(m)
		m.lease = func(_ context.Context, l *leaseMutant) {
			told, tell := context.WithCancelCause(context.Background())
			inner := l.Lease.Context()
			l.ctx = told
			context.AfterFunc(inner, func() {
				for underWay.Load() > 0 && errors.Is(context.Cause(inner), lock.ErrLost) {
					time.Sleep(5 * time.Millisecond)
				}
				tell(context.Cause(inner))
			})
		}
	})},
	"a renewal of an ended hold tells of its deadline only, from the second one on": {rule: "EndedContexts", says: "another Renew, with a context that had ended,", change: endless(func(l *leaseMutant) {
		var told atomic.Bool
		l.renew = func(ctx context.Context) error {
			err := l.Lease.Renew(ctx)
			if errors.Is(err, lock.ErrNotHeld) && told.Swap(true) && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return ctx.Err()
			}
			return err
		}
	}, nil)},
	"tokens begin anew after an hour": {rule: "TokenSurvivesIdling", says: "token", change: endless(func(l *leaseMutant) {
		l.token = func() uint64 { return l.Lease.Token() & math.MaxUint32 } // of microseconds
	}, nil)},
	"leases that were acquired with an endless context outlive Close": {rule: "CloseEndsHolds", says: "was alive after the Close", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.lease = func(ctx context.Context, l *leaseMutant) {
			if ctx.Done() != nil {
				return
			}
			inner := l.Lease.Context()
			late, end := context.WithCancelCause(context.WithoutCancel(inner))
			l.ctx = late
			context.AfterFunc(inner, func() {
				if errors.Is(context.Cause(inner), lock.ErrClosed) {
					time.Sleep(3 * time.Second)
				}
				end(context.Cause(inner))
			})
		}
	})},
	"a renewal with an endless context is none": {rule: "EndlessContexts", says: "and the deadline stayed as it was", change: endless(func(l *leaseMutant) {
		l.renew = func(ctx context.Context) error {
			if ctx.Done() == nil {
				return nil
			}
			return l.Lease.Renew(ctx)
		}
	}, nil)},
	"a lease of an endless call is not renewed": {rule: "EndlessContexts", says: "is renewed automatically", change: endless(nil, func(ctx context.Context, opts []lock.Option) ([]lock.Option, error) {
		if ctx.Done() == nil {
			return append(slices.Clone(opts), lock.WithoutRenewal()), nil
		}
		return opts, nil
	})},
	"a deadline in centuries is past": {rule: "EndlessContexts", says: "a context that ends in the year 3000 returned error", change: endless(nil, func(ctx context.Context, opts []lock.Option) ([]lock.Option, error) {
		if end, ok := ctx.Deadline(); ok && end.UnixNano() < 0 {
			return nil, context.DeadlineExceeded
		}
		return opts, nil
	})},
	"an endless wait hears no expiry": {rule: "EndlessContexts", says: "had not been granted the key", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			for ctx.Done() == nil {
				l, err := m.Client.TryAcquire(ctx, key, opts...)
				if !errors.Is(err, lock.ErrHeld) {
					return l, err
				}
				time.Sleep(time.Hour)
			}
			return m.Client.Acquire(ctx, key, opts...)
		}
	})},
	"who has the context of a lease has the lease": {rule: "ExclusiveWithinLocker", says: "with the context of the lease", change: alone(func(m *lockerMutant, _ backend.Backend) {
		type held struct{ key string }
		m.lease = func(_ context.Context, l *leaseMutant) {
			l.ctx = context.WithValue(l.Lease.Context(), held{l.Lease.Key()}, l)
		}
		try := m.try
		m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			if l, ok := ctx.Value(held{key}).(*leaseMutant); ok {
				return l, nil
			}
			return try(ctx, key, opts...)
		}
	})},
	"an option is added behind the caller's list": {rule: "OptionsOfOneCall", says: "into the caller's list", change: endless(nil, func(_ context.Context, opts []lock.Option) ([]lock.Option, error) {
		return append(opts, func(*lock.Settings) {}), nil
	})},
	"all refusals of a Locker are one": {rule: "HeldDetails", says: "once another key was refused", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var mu sync.Mutex
		var last lock.HeldError
		try := m.try
		m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, err := try(ctx, key, opts...)
			var held *lock.HeldError
			if err == nil || !errors.As(err, &held) {
				return l, err
			}
			mu.Lock()
			defer mu.Unlock()
			last = *held
			return nil, &last
		}
	})},
	"a Locker that is closed ends the leases of what it asked for last": {rule: "CloseEndsHolds", says: "one of which was refused its key", change: func() func(*lockerMutant, backend.Backend) {
		var leases sync.Map // by key, of all Lockers
		return func(m *lockerMutant, _ backend.Backend) {
			var last atomic.Value
			m.lease = func(_ context.Context, l *leaseMutant) { leases.Store(l.Lease.Key(), l.Lease) }
			try := m.try
			m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				last.Store(key)
				return try(ctx, key, opts...)
			}
			m.close = func() error {
				if key := last.Load(); key != nil {
					if l, ok := leases.Load(key); ok {
						_ = l.(lock.Lease).Release(context.Background())
					}
				}
				return m.Client.Close()
			}
		}
	}},
	"the context of a lease has the deadline of its grant": {rule: "RenewKeeps", says: "the deadline of a lease's context has passed", change: endless(func(l *leaseMutant) {
		if first, ok := l.Lease.Deadline(); ok {
			l.ctx = withDeadline{l.Lease.Context(), first}
		}
	}, nil)},
	"two scripts of one sound are one": {rule: "IndependentKeys", says: "\u30ab", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.both(func(get engine.Getter) engine.Getter {
			return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				return get(ctx, strings.ReplaceAll(key, "\u304b", "\u30ab"), opts...)
			}
		})
	})},
	"the second removal of a key is told late": {rule: "LostOnRemoval", says: "of the same key and Locker had been lost", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var lost sync.Map
		m.lease = func(_ context.Context, l *leaseMutant) {
			_, before := lost.Load(l.Key())
			toldLater(l, func(cause error) time.Duration {
				if !errors.Is(cause, lock.ErrTakenOver) {
					return 0
				}
				lost.Store(l.Key(), true)
				if before {
					return 10 * time.Second
				}
				return 0
			})
		}
	})},
	"the second maximum of a key is not kept": {rule: "MaxHoldEnds", says: "of the same key before, which had ended so", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var reached sync.Map
		m.both(func(get engine.Getter) engine.Getter {
			return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				return get(ctx, key, rewritten(opts, func(s *lock.Settings) {
					if _, ok := reached.Load(key); ok {
						s.MaxHold = 0
					}
				})...)
			}
		})
		m.lease = func(_ context.Context, l *leaseMutant) {
			context.AfterFunc(l.ctx, func() {
				if errors.Is(context.Cause(l.ctx), lock.ErrMaxHold) {
					reached.Store(l.Key(), true)
				}
			})
		}
	})},
	"a maximum that passes after the release becomes the cause": {rule: "MaxHoldEnds", says: "whose maximum hold has passed since", change: alone(func(m *lockerMutant, _ backend.Backend) {
		over, end := context.WithCancelCause(context.Background())
		end(lock.ErrMaxHold)
		m.lease = func(_ context.Context, l *leaseMutant) {
			if l.set.MaxHold == 0 {
				return
			}
			limit := time.Now().Add(l.set.MaxHold)
			l.now = func() context.Context {
				if time.Now().After(limit) && errors.Is(context.Cause(l.ctx), lock.ErrReleased) {
					return over
				}
				return l.ctx
			}
		}
	})},
	"a maximum of more than five minutes is told and not kept": {rule: "MaxHoldEnds", says: "its maximum hold was 10m0s", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.both(func(get engine.Getter) engine.Getter {
			return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				return get(ctx, key, rewritten(opts, func(s *lock.Settings) {
					if s.MaxHold > 5*time.Minute {
						s.MaxHold = 0
					}
				})...)
			}
		})
		m.lease = func(_ context.Context, l *leaseMutant) {
			limit := time.Now().Add(l.set.MaxHold)
			l.deadline = func() (time.Time, bool) {
				d, ok := l.Lease.Deadline()
				if l.set.MaxHold > 0 && d.After(limit) {
					d = limit
				}
				return d, ok
			}
		}
	})},
	"leases of the smallest TTL are not renewed": {rule: "RenewKeeps", says: "the smallest of the guarantees", change: asks(func(_ string, s *lock.Settings) {
		s.NoRenewal = s.NoRenewal || s.TTL > 0 && s.TTL/3 < 10*time.Millisecond // of a timer
	})},
	"a lease is renewed for five minutes": {rule: "WaitOutlastsTTL", says: "because its holder renews it", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var begun sync.Map
		renewing(m, func(l *leaseMutant) bool {
			first, _ := begun.LoadOrStore(l, time.Now())
			return time.Since(first.(time.Time)) > 5*time.Minute
		})
	})},
	"a lease of an idle Locker is renewed for five minutes": {rule: "IdleLockerWorks", says: "though nobody uses its Locker", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var used atomic.Int64
		renewing(m, func(*leaseMutant) bool { return time.Since(time.UnixMilli(used.Load())) > 5*time.Minute })
		try := m.try
		m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			used.Store(time.Now().UnixMilli())
			return try(ctx, key, opts...)
		}
	})},
	"a wait ends after five minutes": {rule: "WaitOutlastsTTL", says: "Acquire gave up", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
			defer cancel()
			return m.Client.Acquire(ctx, key, opts...)
		}
	})},
	"a wait for a server that is away ends after ten seconds": {rule: "UnavailableIsTold", says: "the server can be reached again", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			patient, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			l, err := m.Client.Acquire(patient, key, opts...)
			if err != nil && ctx.Err() == nil && !errors.Is(err, lock.ErrUnavailable) {
				return m.Client.Acquire(ctx, key, opts...)
			}
			return l, err
		}
	})},
	"a release is sent five times": {rule: "ReleaseUnknown", says: "its release is repeated until then", around: func() around {
		return func(b backend.Backend) backend.Backend { return sendsFiveTimes{wrapper{b}, &sync.Map{}} }
	}},
	"the first request after five minutes finds its connection closed": {rule: "IdleLockerWorks", says: "on a free key returned", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var last atomic.Int64
		last.Store(time.Now().UnixMilli())
		m.both(func(get engine.Getter) engine.Getter {
			return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				if now := time.Now().UnixMilli(); now-last.Swap(now) > (5 * time.Minute).Milliseconds() {
					return nil, fmt.Errorf("%w: connection reset by peer", lock.ErrUnavailable)
				}
				return get(ctx, key, opts...)
			}
		})
	})},
	"an automatic renewal is certain for longer than its TTL": {rule: "RenewKeeps", says: "a lease that is renewed automatically is certain", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			first, _ := l.Lease.Deadline()
			l.deadline = func() (time.Time, bool) {
				d, ok := l.Lease.Deadline()
				if l.set.MaxHold == 0 && d.After(first) && l.Lease.Context().Err() == nil {
					d = d.Add(l.set.TTL / 4)
				}
				return d, ok
			}
		}
	})},
	"an automatic renewal counts from its answer": {rule: "DeadlineFromSend", says: "the answer to an automatic renewal", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var until sync.Map // of leases
		renewing(m, func(l *leaseMutant) bool {
			if l.Lease.Renew(context.Background()) == nil && l.set.MaxHold == 0 {
				until.Store(l, time.Now().Add(l.set.TTL))
			}
			return true // it is renewed
		})
		renews := m.lease
		m.lease = func(ctx context.Context, l *leaseMutant) {
			l.deadline = func() (time.Time, bool) {
				if later, ok := until.Load(l); ok && l.Lease.Context().Err() == nil {
					return later.(time.Time), true
				}
				return l.Lease.Deadline()
			}
			l.renew = func(ctx context.Context) error {
				until.Delete(l)
				return l.Lease.Renew(ctx)
			}
			renews(ctx, l)
		}
	})},
	"a wait of an owner that was given up counts as a hold": {rule: "WaiterGivesUp", says: "only a wait of its Locker for the same key was given up before", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var counted sync.Map
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, err := m.Client.Acquire(ctx, key, opts...)
			if owner := with(opts).Owner; owner != "" && ctx.Err() != nil && err != nil {
				counted.Store(key+"\x00"+owner, true)
			}
			return l, err
		}
		m.lease = func(_ context.Context, l *leaseMutant) {
			if _, ok := counted.LoadAndDelete(l.Key() + "\x00" + l.set.Owner); ok {
				_, _ = m.Client.TryAcquire(context.Background(), l.Key(), lock.WithOwner(l.set.Owner)) // and is not released
			}
		}
	})},
	"an entry that was not acceptable counts as a hold": {rule: "TTLRange", says: "for their TTLs, don't count", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var holds sync.Map // by key
		m.lease = func(_ context.Context, l *leaseMutant) { holds.Store(l.Key(), l) }
		try := m.try
		m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, err := try(ctx, key, opts...)
			if held, ok := holds.Load(key); ok && errors.Is(err, lock.ErrInvalid) {
				if outer := held.(*leaseMutant); outer.set.Owner != "" && outer.Lease.Context().Err() == nil {
					_, _ = m.Client.TryAcquire(ctx, key, lock.WithOwner(outer.set.Owner)) // and is not released
				}
			}
			return l, err
		}
	})},
	"the clean-up of a wait that was given up ends the next lease": {rule: "WaiterGivesUp", says: "only a wait of its Locker for the same key was given up before", change: alone(func(m *lockerMutant, b backend.Backend) {
		var holds sync.Map // by key
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			before, _ := holds.Load(key)
			l, err := m.Client.Acquire(ctx, key, opts...)
			if err != nil && ctx.Err() != nil {
				time.AfterFunc(50*time.Millisecond, func() {
					if now, ok := holds.Load(key); ok && now != before {
						held, _ := lock.HeldOn[backend.Backend](now.(lock.Lease))
						_ = b.Release(context.Background(), held.Hold)
					}
				})
			}
			return l, err
		}
		m.lease = func(_ context.Context, l *leaseMutant) { holds.Store(l.Key(), l.Lease) }
	})},
	"a release of what ran out, with an ended context, is by key": {rule: "LossEndsUse", says: "since only an earlier lease of the same Locker, that has run out", change: alone(func(m *lockerMutant, b backend.Backend) {
		endsByKey(m, b, lock.ErrExpired, func(ctx context.Context) bool { return ctx.Err() != nil }, false)
	})},
	"a release of what was removed is by key": {rule: "LostOnRemoval", says: "since only an earlier lease of the same Locker, whose record was removed", change: alone(func(m *lockerMutant, b backend.Backend) {
		endsByKey(m, b, lock.ErrTakenOver, func(context.Context) bool { return true }, false)
	})},
	"a renewal of what was removed is by key": {rule: "LostOnRemoval", says: "Renew of a lease whose record was removed, while its Locker has the key", change: alone(func(m *lockerMutant, b backend.Backend) {
		endsByKey(m, b, lock.ErrTakenOver, func(context.Context) bool { return false }, true)
	})},
	"a renewal after the maximum hold is by key": {rule: "MaxHoldEnds", says: "Renew of a lease that reached its maximum hold, while its Locker has the key", change: alone(func(m *lockerMutant, b backend.Backend) {
		endsByKey(m, b, lock.ErrMaxHold, func(context.Context) bool { return false }, true)
	})},
	"an inner hold that ran out ends the renewals of the others": {rule: "ExpiryIsPerHold", says: "the second hold of its owner is renewed", change: alone(func(m *lockerMutant, _ backend.Backend) {
		lossEndsRenewals(m, lock.ErrExpired)
	})},
	"an inner hold that reached its maximum ends the renewals of the others": {rule: "MaxHoldEnds", says: "only another hold of its owner has reached its maximum", change: alone(func(m *lockerMutant, _ backend.Backend) {
		lossEndsRenewals(m, lock.ErrMaxHold)
	})},
	"renewals come ten times too often": {rule: "RenewKeeps", says: "expected no more than", change: alone(func(m *lockerMutant, _ backend.Backend) {
		renewing(m, func(l *leaseMutant) bool {
			for range 9 {
				_ = l.Lease.Renew(context.Background())
			}
			return false
		})
	})},
	"a granted try is sent once more": {rule: "TryIsImmediate", says: "which was granted, has sent 2 requests", change: alone(func(m *lockerMutant, b backend.Backend) {
		m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, err := m.Client.TryAcquire(ctx, key, opts...)
			if err == nil {
				held, _ := lock.HeldOn[backend.Backend](l)
				_, _ = b.Try(ctx, backend.Request{Key: key, ID: held.Hold.ID, Owner: held.Hold.Owner, TTL: held.Hold.TTL})
			}
			return l, err
		}
	})},
	"whom a try of its Locker overtakes goes to the end": {rule: "WaiterOrderLocal", says: "overtaken by a try", change: alone(func(m *lockerMutant, _ backend.Backend) { overtakenGoesLast(m) })},
	"the release of what was revoked is well": {rule: "RevokeByToken", says: "Release of a lease whose hold was revoked", change: alone(func(m *lockerMutant, b backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			l.release = func(ctx context.Context) error {
				rec, held := ability[backend.Inspector](b).Inspect(context.Background(), l.Key())
				if err := l.Lease.Release(ctx); held != nil || !rec.Revoked || rec.Token != l.Lease.Token() {
					return err
				}
				return nil
			}
		}
	})},
}

// endsByKey has what is done with a lease that was lost for the cause be done with the next one of
// its Locker.
func endsByKey(m *lockerMutant, b backend.Backend, cause error, releases func(ctx context.Context) bool, renews bool) {
	var last sync.Map // leases, by key
	m.lease = func(_ context.Context, l *leaseMutant) {
		last.Store(l.Key(), l.Lease)
		next := func() (backend.Hold, bool) {
			now, _ := last.Load(l.Key())
			if other := now.(lock.Lease); other != l.Lease && other.Context().Err() == nil && errors.Is(context.Cause(l.ctx), cause) {
				held, err := lock.HeldOn[backend.Backend](other)
				return held.Hold, err == nil
			}
			return backend.Hold{}, false
		}
		l.release = func(ctx context.Context) error {
			if h, ok := next(); ok && releases(ctx) && !l.late.Swap(true) {
				_ = b.Release(context.Background(), h)
			}
			return l.Lease.Release(ctx)
		}
		l.renew = func(ctx context.Context) error {
			if h, ok := next(); ok && renews {
				_, err := b.Renew(ctx, h)
				return err
			}
			return l.Lease.Renew(ctx)
		}
	}
}

// lossEndsRenewals has one hold of an owner that is lost for the cause end the renewals of those
// beside it.
func lossEndsRenewals(m *lockerMutant, cause error) {
	var begun, lost sync.Map
	renewing(m, func(l *leaseMutant) bool {
		since, _ := begun.Load(l)
		at, ok := lost.Load(l.Key() + "\x00" + l.set.Owner)
		return ok && at.(time.Time).After(since.(time.Time))
	})
	renews := m.lease
	m.lease = func(ctx context.Context, l *leaseMutant) {
		begun.Store(l, time.Now())
		context.AfterFunc(l.ctx, func() {
			if l.set.Owner != "" && errors.Is(context.Cause(l.ctx), cause) {
				lost.Store(l.Key()+"\x00"+l.set.Owner, time.Now())
			}
		})
		renews(ctx, l)
	}
}

// sendsFiveTimes gives a release up that has failed so often.
type sendsFiveTimes struct {
	wrapper
	failed *sync.Map // how often, by id
}

func (b sendsFiveTimes) send(h backend.Hold, request func() error) error {
	stored, _ := b.failed.LoadOrStore(h.ID, new(atomic.Int64))
	failed := stored.(*atomic.Int64)
	if failed.Load() >= 5 {
		return nil
	}
	err := request()
	if err != nil && !errors.Is(err, backend.ErrNotHeld) {
		failed.Add(1)
	}
	return err
}

func (b sendsFiveTimes) Release(ctx context.Context, h backend.Hold) error {
	return b.send(h, func() error { return b.Backend.Release(ctx, h) })
}

func (b sendsFiveTimes) ReleaseTelling(ctx context.Context, h backend.Hold) (others int, err error) {
	err = b.send(h, func() error {
		others, err = ability[backend.ReleaseTeller](b.Backend).ReleaseTelling(ctx, h)
		return err
	})
	return others, err
}

// overtakenGoesLast has those without an owner wait in a line, of which the first one asks.
func overtakenGoesLast(m *lockerMutant) {
	type waiter struct {
		turn  chan struct{}
		stops context.CancelFunc
	}
	var mu sync.Mutex
	lines := map[string][]*waiter{}
	next := func(key string) {
		if len(lines[key]) == 0 {
			delete(lines, key)
			return
		}
		select {
		case lines[key][0].turn <- struct{}{}:
		default:
		}
	}
	m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
		l, err := m.Client.TryAcquire(ctx, key, opts...)
		mu.Lock()
		defer mu.Unlock()
		if q := lines[key]; err == nil && len(q) > 1 {
			first := q[0]
			lines[key] = append(q[1:], first)
			if first.stops != nil {
				first.stops()
			}
			next(key)
		}
		return l, err
	}
	m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
		if ctx.Err() != nil || with(opts).Owner != "" {
			return m.Client.Acquire(ctx, key, opts...)
		}
		me := &waiter{turn: make(chan struct{}, 1)}
		mu.Lock()
		lines[key] = append(lines[key], me)
		if len(lines[key]) == 1 {
			next(key)
		}
		mu.Unlock()
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			lines[key] = slices.DeleteFunc(lines[key], func(w *waiter) bool { return w == me })
			next(key)
		}()
		for {
			select {
			case <-me.turn:
			case <-ctx.Done():
				return nil, heldNow(m, ctx, key, opts)
			}
			asking, stops := context.WithCancel(ctx)
			mu.Lock()
			me.stops = stops
			mu.Unlock()
			l, err := m.Client.Acquire(asking, key, opts...)
			again := err != nil && asking.Err() != nil && ctx.Err() == nil
			stops()
			if !again {
				return l, err
			}
		}
	}
}

func TestMutantsOfLater(t *testing.T) {
	t.Parallel()
	mustSayAll(t, laterLockers)
}

// releasesAgain is a Locker whose releases that failed are repeated until they are answered, if the
// condition holds.
func releasesAgain(condition func(ctx context.Context, err error) bool) func() func(*lockerMutant, backend.Backend) {
	return alone(func(m *lockerMutant, b backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			held, err := lock.HeldOn[backend.Backend](l.Lease)
			if err != nil {
				return
			}
			l.release = func(ctx context.Context) error {
				err := l.Lease.Release(ctx)
				for err != nil && !errors.Is(err, lock.ErrNotHeld) && condition(ctx, err) {
					time.Sleep(50 * time.Millisecond)
					err = b.Release(ctx, held.Hold)
				}
				return err
			}
		}
	})
}

// countsFailures gives a hold up at its tenth renewal that fails.
type countsFailures struct {
	backend.Backend
	mu     sync.Mutex
	failed map[backend.ID]int
}

func (c *countsFailures) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	v, err := c.Backend.Renew(ctx, hold)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.failed[hold.ID]++
	}
	if c.failed[hold.ID] >= 10 {
		return backend.Validity{}, lock.ErrNotHeld
	}
	return v, err
}

// forgetsRenewals repeats a release until the TTL of the grant has passed.
type forgetsRenewals struct {
	backend.Backend
	mu     sync.Mutex
	ends   map[backend.ID]time.Time // of what was granted
	failed map[backend.ID]bool
}

func (f *forgetsRenewals) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := f.Backend.Try(ctx, req)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		f.ends[req.ID] = time.Now().Add(req.TTL)
	}
	return g, err
}

func (f *forgetsRenewals) Release(ctx context.Context, hold backend.Hold) error {
	f.mu.Lock()
	over := f.failed[hold.ID] && time.Now().After(f.ends[hold.ID])
	f.mu.Unlock()
	if over {
		return nil
	}
	err := f.Backend.Release(ctx, hold)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed[hold.ID] = err != nil && !errors.Is(err, backend.ErrNotHeld)
	return err
}

// callersRepeats repeats no release whose caller has gone.
type callersRepeats struct {
	backend.Backend
	over sync.Map // keys
}

func (c *callersRepeats) Release(ctx context.Context, hold backend.Hold) error {
	if _, over := c.over.Load(hold.Key); over {
		return nil
	}
	return c.Backend.Release(ctx, hold)
}

// onePlan renews the leases of a Locker by one timer, which is set again when it has fired.
type onePlan struct {
	mu     sync.Mutex
	leases []*dueLease
	timer  *time.Timer // nil without leases
}

type dueLease struct {
	lock.Lease
	every time.Duration
	at    time.Time
}

func (p *onePlan) add(l lock.Lease, every time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := &dueLease{l, every, time.Now().Add(every)}
	p.leases = append(p.leases, d)
	if p.timer == nil {
		p.timer = time.AfterFunc(time.Millisecond, p.renew) // with all that are taken at the same time
	}
	context.AfterFunc(l.Context(), func() { p.remove(d) })
}

func (p *onePlan) remove(d *dueLease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leases = slices.DeleteFunc(p.leases, func(other *dueLease) bool { return other == d })
	if len(p.leases) == 0 {
		p.timer.Stop()
		p.timer = nil
	}
}

func (p *onePlan) renew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.leases) == 0 {
		return
	}
	now := time.Now()
	next := now.Add(time.Hour)
	for _, d := range p.leases {
		if !now.Before(d.at) {
			d.at = now.Add(d.every)
			go func() { _ = d.Renew(context.Background()) }()
		}
		if d.at.Before(next) {
			next = d.at
		}
	}
	p.timer.Reset(time.Until(next))
}

// triesUnderWay is how many calls of TryAcquire have not returned.
func triesUnderWay(m *lockerMutant) *atomic.Int64 {
	underWay, try := new(atomic.Int64), m.try
	m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
		underWay.Add(1)
		defer underWay.Add(-1)
		return try(ctx, key, opts...)
	}
	return underWay
}

// endless changes leases, and the options of calls by their contexts.
func endless(lease func(l *leaseMutant), options func(ctx context.Context, opts []lock.Option) ([]lock.Option, error)) func() func(*lockerMutant, backend.Backend) {
	return alone(func(m *lockerMutant, _ backend.Backend) {
		if lease != nil {
			m.lease = func(_ context.Context, l *leaseMutant) { lease(l) }
		}
		if options == nil {
			return
		}
		m.both(func(get engine.Getter) engine.Getter {
			return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				opts, err := options(ctx, opts)
				if err != nil {
					return nil, err
				}
				return get(ctx, key, opts...)
			}
		})
	})
}

// withDeadline is a context that tells a deadline at which it does not end.
type withDeadline struct {
	context.Context
	deadline time.Time
}

// Deadline is part of context.Context.
func (w withDeadline) Deadline() (time.Time, bool) { return w.deadline, true }
