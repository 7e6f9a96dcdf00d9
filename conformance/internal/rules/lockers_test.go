package rules_test

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/internal/engine"
	memlock "github.com/mortiselock/lock/memory"
)

// lockerMutant is a healthy Locker with methods replaced.
type lockerMutant struct {
	*lock.Client
	try, acquire engine.Getter
	close        func() error
	lease        func(ctx context.Context, m *leaseMutant)
	says         func(backend.Guarantees) backend.Guarantees
	prints       func() string
}

type leaseMutant struct {
	lock.Lease
	set      lock.Settings
	ctx      context.Context
	release  func(context.Context) error
	renew    func(context.Context) error
	deadline func() (time.Time, bool)
	token    func() uint64
	key      func() string
	now      func() context.Context // in place of ctx
	call     context.Context        // that of the Acquire which had to wait
	late     atomic.Bool            // its release was given a context that had ended
	chatty   bool                   // printed, it shows its owner
}

// Format keeps the fields of the lease from being read while they change.
func (l *leaseMutant) Format(s fmt.State, verb rune) {
	if l.chatty {
		fmt.Fprint(s, l.set.Owner)
		return
	}
	fmt.Fprintf(s, fmt.FormatString(s, verb), l.Lease)
}

func (m *lockerMutant) Guarantees() backend.Guarantees {
	g := m.Client.Guarantees()
	if m.says != nil {
		g = m.says(g)
	}
	return g
}

// Format implements fmt.Formatter.
func (m *lockerMutant) Format(s fmt.State, verb rune) {
	if m.prints != nil {
		fmt.Fprint(s, m.prints())
		return
	}
	m.Client.Format(s, verb)
}

func (m *lockerMutant) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return m.change(ctx, opts)(m.try(ctx, key, opts...))
}

func (m *lockerMutant) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return m.change(ctx, opts)(m.acquire(ctx, key, opts...))
}

func (m *lockerMutant) change(ctx context.Context, opts []lock.Option) func(lock.Lease, error) (lock.Lease, error) {
	return func(l lock.Lease, err error) (lock.Lease, error) {
		if err != nil || m.lease == nil {
			return l, err
		}
		lm := &leaseMutant{Lease: l, ctx: l.Context(), release: l.Release, renew: l.Renew, deadline: l.Deadline}
		lm.set, _ = lock.ResolveOptions(opts...)
		m.lease(ctx, lm)
		return lm, nil
	}
}

func (m *lockerMutant) Close() error { return m.close() }

func (l *leaseMutant) Context() context.Context {
	if l.now != nil {
		return l.now()
	}
	return l.ctx
}

func (l *leaseMutant) Key() string {
	if l.key != nil {
		return l.key()
	}
	return l.Lease.Key()
}

func (l *leaseMutant) Release(ctx context.Context) error { return l.release(ctx) }

func (l *leaseMutant) Renew(ctx context.Context) error { return l.renew(ctx) }

func (l *leaseMutant) Token() uint64 {
	if l.token != nil {
		return l.token()
	}
	return l.Lease.Token()
}

func (l *leaseMutant) Deadline() (time.Time, bool) { return l.deadline() }

// wrapped is a Config on a memory store, over whose backends the Lockers are changed.
func wrapped(change func(m *lockerMutant, b backend.Backend)) conformance.Config {
	cfg := memory()
	cfg.Wrap = func(b backend.Backend, ttl time.Duration) (lock.Locker, error) {
		l, err := lock.New(b, &lock.Options{TTL: ttl})
		if err != nil {
			return nil, err
		}
		m := &lockerMutant{Client: l, try: l.TryAcquire, acquire: l.Acquire, close: l.Close}
		change(m, b)
		return m, nil
	}
	return cfg
}

// turnOfRenewals lets one renewal by hand go at a time. What takes a turn waits for them, and
// they for its end.
func turnOfRenewals(l *leaseMutant) (turn func() (end func())) {
	busy := make(chan struct{}, 1)
	turn = func() func() {
		busy <- struct{}{}
		return func() { <-busy }
	}
	l.renew = func(ctx context.Context) error {
		defer turn()()
		return l.Lease.Renew(ctx)
	}
	return turn
}

// both replaces TryAcquire and Acquire alike.
func (m *lockerMutant) both(f func(get engine.Getter) engine.Getter) {
	m.try, m.acquire = f(m.Client.TryAcquire), f(m.Client.Acquire)
}

// renewsUnless has leases renewed unless it is paused. It is told since when callers wait, by
// key.
func (m *lockerMutant) renewsUnless(paused func(waits *sync.Map, key string) bool) {
	m.renewsEvery(1./3, paused)
}

// renewsEvery is renewsUnless with the part of the TTL after which a lease is renewed.
func (m *lockerMutant) renewsEvery(part float64, paused func(waits *sync.Map, key string) bool) {
	var waits sync.Map
	m.both(func(get engine.Getter) engine.Getter {
		return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			return get(ctx, key, rewritten(opts, func(s *lock.Settings) { s.NoRenewal = true })...)
		}
	})
	acquire := m.acquire
	m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
		waits.Store(key, time.Now())
		defer waits.Delete(key)
		return acquire(ctx, key, opts...)
	}
	m.lease = func(_ context.Context, l *leaseMutant) {
		if l.set.NoRenewal {
			return
		}
		go func() {
			pause := time.Duration(part * float64(l.set.TTL))
			for time.Sleep(pause); l.Lease.Context().Err() == nil; time.Sleep(pause) {
				if !paused(&waits, l.Key()) {
					_ = l.Lease.Renew(context.Background())
				}
			}
		}()
	}
}

// remembers has an option stay for the acquisitions after the one that it was given to.
func remembers(keep func(kept, s *lock.Settings)) func(*lockerMutant) {
	return func(m *lockerMutant) {
		var mu sync.Mutex
		var kept lock.Settings
		m.both(func(get engine.Getter) engine.Getter {
			return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				return get(ctx, key, rewritten(opts, func(s *lock.Settings) {
					mu.Lock()
					defer mu.Unlock()
					keep(&kept, s)
				})...)
			}
		})
	}
}

// stays is a setting that keeps the last value that was not zero.
func stays[T comparable](kept, now *T) {
	*kept = cmp.Or(*now, *kept)
	*now = *kept
}

// rewritten gives options that amount to the settings.
func rewritten(opts []lock.Option, change func(*lock.Settings)) []lock.Option {
	return append(append([]lock.Option(nil), opts...), change)
}

// asksAgain waits by asking again after a pause, which grows by the factor.
func asksAgain(pause time.Duration, factor int) func(*lockerMutant) {
	return func(m *lockerMutant) {
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			for wait := pause; ; wait *= time.Duration(factor) {
				l, err := m.Client.TryAcquire(ctx, key, opts...)
				if !errors.Is(err, lock.ErrHeld) {
					return l, err
				}
				select {
				case <-ctx.Done():
					return nil, errors.Join(err, ctx.Err())
				case <-time.After(wait):
				}
			}
		}
	}
}

func TestMutantLockers(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		rules  string
		change func(m *lockerMutant)
	}{
		"none": {"", func(*lockerMutant) {}},
		"healthy, and Close takes 4.5 s": {"", func(m *lockerMutant) {
			m.close = func() error {
				time.Sleep(4500 * time.Millisecond)
				return m.Client.Close()
			}
		}},
		"any TTL will do": {"TTLGrain", func(m *lockerMutant) {
			m.says = func(g backend.Guarantees) backend.Guarantees { g.TTLGrain = time.Millisecond; return g }
		}},
		"a refusal without limits": {"TTLGrain", func(m *lockerMutant) {
			m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := m.Client.TryAcquire(ctx, key, opts...)
				if errors.Is(err, lock.ErrInvalid) {
					err = fmt.Errorf("%w: bad TTL", lock.ErrInvalid)
				}
				return l, err
			}
		}},
		"a deadline of whole seconds": {"TTLGrain", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.deadline = func() (time.Time, bool) {
					d, ok := l.Lease.Deadline()
					return d.Add(-(l.set.TTL % time.Second)), ok
				}
			}
		}},
		"a try that tries for a while": {"TryIsImmediate", func(m *lockerMutant) {
			m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				for n := 0; ; n++ {
					l, err := m.Client.TryAcquire(ctx, key, opts...)
					if err == nil || ctx.Err() != nil || n == 3 {
						return l, err
					}
					time.Sleep(40 * time.Millisecond)
				}
			}
		}},
		"a renewal that meets the release is a loss": {"ReleaseBesideRenewal", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				ctx, lose := context.WithCancelCause(context.Background())
				l.ctx = ctx
				l.renew = func(ctx context.Context) error {
					err := l.Lease.Renew(ctx)
					if errors.Is(err, lock.ErrNotHeld) {
						lose(lock.ErrLost)
					}
					return err
				}
				l.release = func(ctx context.Context) error {
					err := l.Lease.Release(ctx)
					time.Sleep(100 * time.Microsecond)
					lose(lock.ErrReleased)
					return err
				}
			}
		}},
		"what is not promised is done all the same": {"UnsupportedIsRefused", func(m *lockerMutant) {
			m.says = func(g backend.Guarantees) backend.Guarantees { g.Reentrancy = backend.ReentrancyNone; return g }
		}},
		"a waiter asks a few times only": {"TryBesideWaiters ManyWaiters", func(m *lockerMutant) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				for n := 0; ; n++ {
					l, err := m.Client.TryAcquire(ctx, key, opts...)
					if err == nil || ctx.Err() != nil || n == 3 {
						return l, err
					}
					time.Sleep(time.Millisecond)
				}
			}
		}},
		"a wait has a limit of its own": {"WaitOutlastsTTL", func(m *lockerMutant) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				limited, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
				defer cancel()
				return m.Client.Acquire(limited, key, opts...)
			}
		}},
		"a lease that is busy": {"LeaseConcurrent", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				var mu sync.Mutex
				l.renew = func(ctx context.Context) error {
					if !mu.TryLock() {
						return errors.New("the lease is busy")
					}
					defer mu.Unlock()
					time.Sleep(time.Millisecond)
					return l.Lease.Renew(ctx)
				}
			}
		}},
		"the context never ends": {"LostByDeadline LostBeforeTakeover LostOnRemoval ReleaseIsNoLoss LossEndsUse CauseIsStable CloseEndsHolds MaxHoldEnds", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) { l.ctx = context.Background() }
		}},
		"the lease's context carries values": {"CauseIsStable", func(m *lockerMutant) {
			m.lease = func(ctx context.Context, l *leaseMutant) { l.ctx = valued{l.ctx, ctx} }
		}},
		"loss is told late": {"LostBeforeTakeover", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				ctx, cancel := context.WithCancelCause(context.Background())
				l.ctx = ctx
				context.AfterFunc(l.Lease.Context(), func() {
					time.Sleep(150 * time.Millisecond)
					cancel(context.Cause(l.Lease.Context()))
				})
			}
		}},
		"a label stays":    {"OptionsOfOneCall", remembers(func(kept, s *lock.Settings) { stays(&kept.Label, &s.Label) })},
		"an owner stays":   {"OptionsOfOneCall", remembers(func(kept, s *lock.Settings) { stays(&kept.Owner, &s.Owner) })},
		"a maximum stays":  {"OptionsOfOneCall", remembers(func(kept, s *lock.Settings) { stays(&kept.MaxHold, &s.MaxHold) })},
		"no renewal stays": {"OptionsOfOneCall", remembers(func(kept, s *lock.Settings) { stays(&kept.NoRenewal, &s.NoRenewal) })},
		"MaxHold is ignored": {"MaxHoldEnds", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					return get(ctx, key, rewritten(opts, func(s *lock.Settings) { s.MaxHold = 0 })...)
				}
			})
		}},
		"a MaxHold of a minute or more is ignored": {"MaxHoldEnds", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					return get(ctx, key, rewritten(opts, func(s *lock.Settings) {
						if s.MaxHold >= time.Minute {
							s.MaxHold = 0
						}
					})...)
				}
			})
		}},
		"a MaxHold of a minute or more is told and not kept": {"MaxHoldEnds", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					return get(ctx, key, rewritten(opts, func(s *lock.Settings) {
						if s.MaxHold >= time.Minute && s.TTL < s.MaxHold {
							s.MaxHold = 0
						}
					})...)
				}
			})
		}},
		"a maximum hold of whole seconds": {"MaxHoldEnds", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					return get(ctx, key, rewritten(opts, func(s *lock.Settings) {
						s.MaxHold = (s.MaxHold + time.Second - 1).Truncate(time.Second)
					})...)
				}
			})
		}},
		"a loss at the server is no loss to its release": {"LostOnRemoval", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.release = func(ctx context.Context) error {
					err := l.Lease.Release(ctx)
					if errors.Is(err, lock.ErrTakenOver) {
						return lock.ErrNotHeld
					}
					return err
				}
			}
		}},
		"the error of the deadline for a cancellation": {"WaiterGivesUp", func(m *lockerMutant) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := m.Client.Acquire(ctx, key, opts...)
				if _, timed := ctx.Deadline(); timed && errors.Is(err, lock.ErrHeld) {
					err = errors.Join(context.DeadlineExceeded, lock.ErrHeld)
				}
				return l, err
			}
		}},
		"who has waited is not told of whom": {"HeldDetails", func(m *lockerMutant) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := m.Client.Acquire(ctx, key, opts...)
				if ctx.Err() != nil && errors.Is(err, lock.ErrHeld) {
					err = errors.Join(ctx.Err(), lock.ErrHeld)
				}
				return l, err
			}
		}},
		"refusals cut the key": {"LongestNames", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					l, err := get(ctx, key, opts...)
					if held := (*lock.HeldError)(nil); errors.As(err, &held) {
						cut := *held
						cut.Key = key[:min(len(key), 64)]
						err = &cut
					}
					return l, err
				}
			})
		}},
		"owners at their limit are told": {"NoSecretsInErrors", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					l, err := get(ctx, key, opts...)
					if set, _ := lock.ResolveOptions(opts...); errors.Is(err, lock.ErrTooManyHolds) {
						err = fmt.Errorf("%w: %x", err, set.Owner)
					}
					return l, err
				}
			})
		}},
		"an owner's wait that close cancels": {"CloseEndsWaits", func(m *lockerMutant) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := m.Client.Acquire(ctx, key, opts...)
				if set, _ := lock.ResolveOptions(opts...); set.Owner != "" && errors.Is(err, lock.ErrClosed) {
					err = context.Canceled
				}
				return l, err
			}
		}},
		"a wait of more than a second that close cancels": {"CloseEndsWaits", func(m *lockerMutant) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				begun := time.Now()
				l, err := m.Client.Acquire(ctx, key, opts...)
				if errors.Is(err, lock.ErrClosed) && time.Since(begun) > time.Second {
					err = context.Canceled
				}
				return l, err
			}
		}},
		"a maximum hold that frees first": {"ContextEndsFirst", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				ctx, cancel := context.WithCancelCause(context.Background())
				inner := l.Lease.Context()
				l.ctx = ctx
				context.AfterFunc(inner, func() {
					if errors.Is(context.Cause(inner), lock.ErrMaxHold) {
						time.Sleep(20 * time.Millisecond)
					}
					cancel(context.Cause(inner))
				})
				l.release = func(ctx context.Context) error { cancel(lock.ErrReleased); return l.Lease.Release(ctx) }
			}
		}},
		"the last cause counts": {"LossEndsUse", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.release = func(ctx context.Context) error {
					err := l.Lease.Release(ctx)
					again, end := context.WithCancelCause(context.Background())
					end(errors.Join(lock.ErrNotHeld, err))
					l.ctx = again
					return err
				}
			}
		}},
		"always renews": {"WithoutRenewalEnds ReleaseReportsLoss ExpiryIsPerHold ReentrantAfterLoss", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					return get(ctx, key, rewritten(opts, func(s *lock.Settings) { s.NoRenewal = false })...)
				}
			})
		}},
		"never renews": {"RenewKeeps HoldOutlivesAcquireCtx", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					return get(ctx, key, rewritten(opts, func(s *lock.Settings) { s.NoRenewal = true })...)
				}
			})
		}},
		"does not renew while a caller waits for another key": {"RenewKeeps", func(m *lockerMutant) {
			m.renewsUnless(func(waits *sync.Map, key string) (paused bool) {
				waits.Range(func(of, since any) bool {
					paused = of != key && time.Since(since.(time.Time)) > 320*time.Millisecond
					return !paused
				})
				return paused
			})
		}},
		"does not renew while a caller waits for the same key": {"RenewKeeps", func(m *lockerMutant) {
			m.renewsUnless(func(waits *sync.Map, key string) bool { _, waiting := waits.Load(key); return waiting })
		}},
		"renews what is short": {"RenewKeeps", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					return get(ctx, key, rewritten(opts, func(s *lock.Settings) { s.NoRenewal = s.NoRenewal || s.TTL > 5*time.Second })...)
				}
			})
		}},
		"renews what is shorter than half a minute": {"RenewKeeps", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					return get(ctx, key, rewritten(opts, func(s *lock.Settings) { s.NoRenewal = s.NoRenewal || s.TTL > 30*time.Second })...)
				}
			})
		}},
		"returns late": {"GrantIsUsable", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					l, err := get(ctx, key, opts...)
					set, _ := lock.ResolveOptions(opts...)
					time.Sleep(set.TTL * 4 / 5)
					return l, err
				}
			})
		}},
		"the deadline is too late": {"DeadlineFromSend ServerOutlivesD", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.deadline = func() (time.Time, bool) {
					d, ok := l.Lease.Deadline()
					return d.Add(40 * time.Millisecond), ok
				}
			}
		}},
		"the deadline is always a whole TTL away": {"ServerOutlivesD", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.deadline = func() (time.Time, bool) { return time.Now().Add(l.set.TTL), true }
			}
		}},
		"a wait's error says too little": {"WaiterGivesUp ErrorsAreTyped", func(m *lockerMutant) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := m.Client.Acquire(ctx, key, opts...)
				if ctx.Err() != nil && err != nil {
					err = ctx.Err()
				}
				return l, err
			}
		}},
		"a cancelled wait goes on": {"CancelDuring WaiterGivesUp", func(m *lockerMutant) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := m.Client.Acquire(ctx, key, opts...)
				if err != nil && ctx.Err() != nil {
					go func() { _, _ = m.Client.Acquire(context.Background(), key, opts...) }()
				}
				return l, err
			}
		}},
		"a cancelled wait does not end": {"WaiterGivesUp", func(m *lockerMutant) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				later, cancel := context.WithCancel(context.Background())
				stop := context.AfterFunc(ctx, func() { time.AfterFunc(4*time.Second, cancel) })
				defer stop()
				return m.Client.Acquire(later, key, opts...)
			}
		}},
		"ended contexts are not looked at": {"CancelBeforeSend", func(m *lockerMutant) {
			m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				return m.Client.TryAcquire(context.WithoutCancel(ctx), key, opts...)
			}
		}},
		"waits in no order": {"WaiterOrderLocal", func(m *lockerMutant) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				for {
					l, err := m.Client.TryAcquire(ctx, key, opts...)
					if !errors.Is(err, lock.ErrHeld) {
						return l, err
					}
					time.Sleep(time.Duration(rand.IntN(int(5 * time.Millisecond))))
				}
			}
		}},
		"sleeps through the release": {"WaiterWakes", asksAgain(20*time.Second, 1)},
		"polls every two seconds":    {"WaiterWakes", asksAgain(2*time.Second, 1)},
		"a cancelled wait ends a second later": {"WaiterGivesUp CancelDuring", func(m *lockerMutant) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := m.Client.Acquire(ctx, key, opts...)
				if err != nil && ctx.Err() != nil {
					time.Sleep(time.Second)
				}
				return l, err
			}
		}},
		"gives up by itself": {"WaitOutlastsTTL", func(m *lockerMutant) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				ctx, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
				defer cancel()
				return m.Client.Acquire(ctx, key, opts...)
			}
		}},
		"gives up after half a minute": {"WaitOutlastsTTL", func(m *lockerMutant) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
				defer cancel()
				return m.Client.Acquire(ctx, key, opts...)
			}
		}},
		"gives up after a minute": {"WaitOutlastsTTL", func(m *lockerMutant) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				ctx, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				return m.Client.Acquire(ctx, key, opts...)
			}
		}},
		"asks less and less often": {"WaitOutlastsTTL", asksAgain(50*time.Millisecond, 2)},
		"a try is slow beside waiters": {"TryBesideWaiters", func(m *lockerMutant) {
			var waiting atomic.Int64
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				waiting.Add(1)
				defer waiting.Add(-1)
				return m.Client.Acquire(ctx, key, opts...)
			}
			m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				if waiting.Load() > 0 {
					time.Sleep(time.Second)
				}
				return m.Client.TryAcquire(ctx, key, opts...)
			}
		}},
		"the loss is told late": {"LostByDeadline", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				ctx, cancel := context.WithCancelCause(context.Background())
				inner := l.Lease.Context()
				context.AfterFunc(inner, func() {
					if errors.Is(context.Cause(inner), lock.ErrLost) {
						time.Sleep(300 * time.Millisecond)
					}
					cancel(context.Cause(inner))
				})
				l.ctx = ctx
			}
		}},
		"a try waits": {"TryIsImmediate", func(m *lockerMutant) {
			m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := m.Client.TryAcquire(ctx, key, opts...)
				if err != nil {
					time.Sleep(3 * time.Second)
				}
				return l, err
			}
		}},
		"a try waits with the waiters of its Locker": {"TryBesideWaiters", func(m *lockerMutant) {
			turn := make(chan struct{}, 1)
			inTurn := func(get func(context.Context, string, ...lock.Option) (lock.Lease, error)) func(context.Context, string, ...lock.Option) (lock.Lease, error) {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					select {
					case turn <- struct{}{}:
					case <-ctx.Done():
						return nil, ctx.Err()
					}
					defer func() { <-turn }()
					return get(ctx, key, opts...)
				}
			}
			m.acquire, m.try = inTurn(m.Client.Acquire), inTurn(m.Client.TryAcquire)
		}},
		"anything is a key": {"KeysRefused", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					if lock.ValidateKey(key) != nil {
						key = fmt.Sprintf("%x", key)
						key = "escaped" + key[:min(len(key), 400)]
					}
					return get(ctx, key, opts...)
				}
			})
		}},
		"keys come back changed": {"HandsOut KeysAccepted", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) { l.Lease = renamed{l.Lease} }
		}},
		"options are ignored": {"TTLRange OwnerRefused LabelRefused ReentrantCount", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, _ ...lock.Option) (lock.Lease, error) { return get(ctx, key) }
			})
		}},
		"a lease beside an error": {"TryIsImmediate", func(m *lockerMutant) {
			m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := m.Client.TryAcquire(ctx, key, opts...)
				if err != nil {
					l = &leaseMutant{}
				}
				return l, err
			}
		}},
		"neither lease nor error": {"TryIsImmediate Progress", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					if l, err := m.Client.TryAcquire(ctx, key, opts...); err == nil {
						return l, nil
					}
					return nil, nil
				}
			})
		}},
		"close does nothing": {"CloseEndsHolds CloseEndsWaits ErrorsAreTyped", func(m *lockerMutant) {
			m.close = func() error {
				time.AfterFunc(time.Minute, func() { _ = m.Client.Close() }) // so that its bubble ends
				return nil
			}
		}},
		"the second release of a lost lease was well": {"ReleaseReportsLoss", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				var told atomic.Bool
				l.release = func(ctx context.Context) error {
					err := l.Lease.Release(ctx)
					if errors.Is(err, lock.ErrLost) && told.Swap(true) {
						return nil
					}
					return err
				}
			}
		}},
		"a hold that was waited for ends with the context of the wait": {"HoldOutlivesAcquireCtx", func(m *lockerMutant) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := m.Client.TryAcquire(ctx, key, opts...)
				if !errors.Is(err, lock.ErrHeld) {
					return l, err
				}
				if l, err = m.Client.Acquire(ctx, key, opts...); err == nil {
					context.AfterFunc(ctx, func() { _ = l.Release(context.Background()) })
				}
				return l, err
			}
		}},
		"the deadline is unknown towards the end": {"LostByDeadline", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.deadline = func() (time.Time, bool) {
					d, ok := l.Lease.Deadline()
					return d, ok && time.Until(d) > l.set.TTL/2
				}
			}
		}},
		"the label takes the place of the TTL": {"HeldDetails", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					return get(ctx, key, rewritten(opts, func(s *lock.Settings) {
						if s.Label != "" {
							s.TTL = 0
						}
					})...)
				}
			})
		}},
		"what has a label is not renewed": {"RenewKeeps", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					return get(ctx, key, rewritten(opts, func(s *lock.Settings) { s.NoRenewal = s.NoRenewal || s.Label != "" })...)
				}
			})
		}},
		"a renewal that cannot be sent any more was well": {"CloseEndsHolds", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.renew = func(ctx context.Context) error {
					if errors.Is(context.Cause(l.Lease.Context()), lock.ErrClosed) {
						return nil
					}
					return l.Lease.Renew(ctx)
				}
			}
		}},
		"what is handed over has no options": {"AcquireKeepsTTL WithoutRenewalEnds MaxHoldEnds", handedOver(func(s *lock.Settings) {
			s.TTL, s.NoRenewal, s.MaxHold = 0, false, 0
		}, nil)},
		"the deadline of what is handed over counts from the wait": {"GrantIsUsable", handedOver(nil, func(l *leaseMutant, since time.Time) {
			l.deadline = func() (time.Time, bool) { return since.Add(backend.ValidFor(l.set.TTL)), true }
		})},
		"served only when nobody else waits": {"Progress", func(m *lockerMutant) {
			var mu sync.Mutex
			var waiting []*string // of this Locker, whoever came last at the end
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				mu.Lock()
				waiting = append(waiting, &key)
				mu.Unlock()
				defer func() {
					mu.Lock()
					waiting = slices.DeleteFunc(waiting, func(k *string) bool { return k == &key })
					mu.Unlock()
				}()
				for ; ctx.Err() == nil; time.Sleep(200 * time.Microsecond) {
					mu.Lock()
					of := slices.DeleteFunc(slices.Clone(waiting), func(k *string) bool { return *k != key })
					mu.Unlock()
					if of[len(of)-1] != &key {
						continue
					}
					if l, err := m.Client.TryAcquire(ctx, key, opts...); !errors.Is(err, lock.ErrHeld) {
						return l, err
					}
				}
				return nil, errors.Join(ctx.Err(), lock.ErrHeld)
			}
		}},
		"watch begun after asking, for owners only": {"WakesAtAnyMoment", watchesLate(3*time.Second, func(_, waits lock.Settings, _ bool) bool {
			return waits.Owner != ""
		})},
		"watch begun after asking, behind owners only": {"WakesAtAnyMoment", watchesLate(3*time.Second, func(holds, _ lock.Settings, _ bool) bool {
			return holds.Owner != ""
		})},
		"watch begun after asking, behind maximum holds only": {"WakesAtAnyMoment", watchesLate(3*time.Second, func(holds, _ lock.Settings, _ bool) bool {
			return holds.MaxHold > 0
		})},
		"watch begun after asking, behind closed Lockers only": {"WakesAtAnyMoment", watchesLate(3*time.Second, func(_, _ lock.Settings, closed bool) bool {
			return closed
		})},
		"watch begun after asking, behind what runs out only": {"WakesAtAnyMoment", watchesLate(12*time.Second, func(holds, _ lock.Settings, _ bool) bool {
			return holds.NoRenewal
		})},
		"a renewal after the maximum hold was well": {"MaxHoldEnds", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.renew = func(ctx context.Context) error {
					if errors.Is(context.Cause(l.Lease.Context()), lock.ErrMaxHold) {
						return nil
					}
					return l.Lease.Renew(ctx)
				}
			}
		}},
		"a second release after the maximum hold was well": {"MaxHoldEnds", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				var told atomic.Bool
				l.release = func(ctx context.Context) error {
					err := l.Lease.Release(ctx)
					if errors.Is(err, lock.ErrMaxHold) && told.Swap(true) {
						return nil
					}
					return err
				}
			}
		}},
		"a renewal's deadline is after the maximum hold": {"MaxHoldEnds", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				first, _ := l.Lease.Deadline()
				l.deadline = func() (time.Time, bool) {
					d, ok := l.Lease.Deadline()
					if l.set.MaxHold > 0 && d.After(first) {
						d = d.Add(l.set.TTL)
					}
					return d, ok
				}
			}
		}},
		"after close a lease that was lost before is a closed one": {"LossEndsUse", func(m *lockerMutant) {
			var closed atomic.Bool
			m.close = func() error { closed.Store(true); return m.Client.Close() }
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.release = func(ctx context.Context) error {
					err := l.Lease.Release(ctx)
					if errors.Is(err, lock.ErrLost) && closed.Load() {
						return errors.Join(lock.ErrClosed, lock.ErrNotHeld)
					}
					return err
				}
			}
		}},
		"a second release after Close was well": {"CloseEndsHolds", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				var told atomic.Bool
				l.release = func(ctx context.Context) error {
					if errors.Is(context.Cause(l.Lease.Context()), lock.ErrClosed) && told.Swap(true) {
						return nil
					}
					return l.Lease.Release(ctx)
				}
			}
		}},
		"a refusal tells the owner's base64": {"NoSecretsInErrors", tellsOwner(func(owner string) string {
			return base64.URLEncoding.EncodeToString([]byte(owner))
		})},
		"a refusal tells the owner as a path": {"NoSecretsInErrors", tellsOwner(url.PathEscape)},
		"a refusal tells the owner in quotes": {"NoSecretsInErrors", tellsOwner(strconv.QuoteToASCII)},
		"a refusal tells the owner's digits":  {"NoSecretsInErrors", tellsOwner(func(owner string) string { return fmt.Sprintf("%X", owner) })},
		"an acquisition that can't begin tells for whom": {"NoSecretsInErrors", func(m *lockerMutant) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				if set, _ := lock.ResolveOptions(opts...); ctx.Err() != nil {
					return nil, fmt.Errorf("acquiring for %s: %w", set.Owner, ctx.Err())
				}
				return m.Client.Acquire(ctx, key, opts...)
			}
		}},
		"close twice is an error": {"CloseTwice", func(m *lockerMutant) {
			var closed atomic.Bool
			m.close = func() error {
				if closed.Swap(true) {
					return lock.ErrClosed
				}
				return m.Client.Close()
			}
		}},
		"a renewal that is cut off tells whose it was": {"NoSecretsInErrors", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.renew = func(ctx context.Context) error {
					err := l.Lease.Renew(ctx)
					if errors.Is(err, context.Canceled) {
						err = fmt.Errorf("renewing for %s: %w", l.set.Owner, err)
					}
					return err
				}
			}
		}},
		"the release of a lost lease tells whose it was": {"NoSecretsInErrors", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.release = func(ctx context.Context) error {
					err := l.Lease.Release(ctx)
					if errors.Is(err, lock.ErrExpired) {
						err = fmt.Errorf("releasing for %s: %w", l.set.Owner, err)
					}
					return err
				}
			}
		}},
		"leases print what they hold": {"NoSecretsInLeases", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) { l.chatty = true }
		}},
		"a Locker prints who has its leases": {"NoSecretsInLeases", func(m *lockerMutant) {
			var owners sync.Map
			m.lease = func(_ context.Context, l *leaseMutant) { owners.Store(l.set.Owner, true) }
			m.prints = func() string {
				said := "Locker of"
				owners.Range(func(owner, _ any) bool { said += fmt.Sprintf(" %q", owner); return true })
				return said
			}
		}},
		"watches the context of every call for ever": {"NothingKept", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					context.AfterFunc(ctx, func() {})
					return get(ctx, key, opts...)
				}
			})
		}},
		"remembers whom it has served": {"NothingKept", func(m *lockerMutant) {
			var owners sync.Map
			m.lease = func(_ context.Context, l *leaseMutant) {
				if l.set.Owner != "" {
					owners.Store(l.set.Owner, true)
				}
			}
		}},
		"remembers who renewed by hand": {"NothingKept", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				var mu sync.Mutex
				var callers []context.Context
				l.renew = func(ctx context.Context) error {
					mu.Lock()
					defer mu.Unlock()
					callers = append(callers, ctx)
					return l.Lease.Renew(ctx)
				}
			}
		}},
		"remembers what it has lost": {"NothingKept", func(m *lockerMutant) {
			var mu sync.Mutex
			var lost []string
			m.lease = func(_ context.Context, l *leaseMutant) {
				context.AfterFunc(l.Lease.Context(), func() {
					mu.Lock()
					defer mu.Unlock()
					if errors.Is(context.Cause(l.Lease.Context()), lock.ErrLost) {
						lost = append(lost, l.Lease.Key())
					}
				})
			}
		}},
		"a cancelled wait is counted for ever, up to a hundred": {"WaiterGivesUp", func(m *lockerMutant) {
			waits := make(chan struct{}, 100)
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				select {
				case waits <- struct{}{}:
				case <-ctx.Done():
					return nil, fmt.Errorf("%w: %w", lock.ErrHeld, ctx.Err())
				}
				l, err := m.Client.Acquire(ctx, key, opts...)
				if err == nil {
					<-waits
				}
				return l, err
			}
		}},
		"a timer for each refusal": {"NothingKept", func(m *lockerMutant) {
			m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := m.Client.TryAcquire(ctx, key, opts...)
				if err != nil {
					time.AfterFunc(20*time.Second, func() { _ = key + " may be free" })
				}
				return l, err
			}
		}},
		"an owner's released lease has a deadline": {"DeadlineEnds", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				if l.set.Owner != "" {
					l.remembers()
				}
			}
		}},
		"a released lease that nobody renewed has a deadline": {"DeadlineEnds", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				if l.set.NoRenewal && l.set.MaxHold == 0 {
					l.remembers()
				}
			}
		}},
		"a removal is told as a maximum hold": {"LostOnRemoval", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.tells(func(cause error) error {
					if errors.Is(cause, lock.ErrTakenOver) {
						return lock.ErrMaxHold
					}
					return cause
				})
			}
		}},
		"a removal is told as a release too": {"LostOnRemoval", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) { l.tells(and(lock.ErrTakenOver, lock.ErrReleased)) }
		}},
		"a removal that a renewal by hand has found has no reason": {"LostOnRemoval", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.tells(func(cause error) error {
					if l.set.NoRenewal && errors.Is(cause, lock.ErrTakenOver) {
						return lock.ErrLost
					}
					return cause
				})
			}
		}},
		"close is told as a loss too": {"CloseEndsHolds", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) { l.tells(and(lock.ErrClosed, lock.ErrExpired)) }
		}},
		"a maximum hold is told as a release too": {"MaxHoldEnds", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) { l.tells(and(lock.ErrMaxHold, lock.ErrReleased)) }
		}},
		"the release of a lease that has run out says no reason": {"ReleaseReportsLoss", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.release = func(ctx context.Context) error {
					err := l.Lease.Release(ctx)
					if errors.Is(err, lock.ErrExpired) {
						return lock.ErrLost
					}
					return err
				}
			}
		}},
		"has tokens and says that it has none": {"HandsOut", func(m *lockerMutant) {
			m.says = func(g backend.Guarantees) backend.Guarantees {
				g.Token, g.TokenSurvives = backend.TokenNone, nil
				return g
			}
		}},
		"an owner is not told of a removal": {"LostOnRemoval", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				if l.set.Owner != "" {
					l.tellsLater(lock.ErrTakenOver, 20*time.Second)
				}
			}
		}},
		"an owner is told of a removal at the deadline": {"LostOnRemoval", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				if l.set.Owner != "" {
					l.tellsLater(lock.ErrTakenOver, l.set.TTL*2/3)
				}
			}
		}},
		"who may hold for a time only is not told of a removal": {"LostOnRemoval", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				if l.set.MaxHold > 0 {
					l.tellsLater(lock.ErrTakenOver, 20*time.Second)
				}
			}
		}},
		"an owner's context outlives the deadline": {"LostByDeadline", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				if l.set.Owner != "" {
					l.tellsLater(lock.ErrExpired, 150*time.Millisecond)
				}
			}
		}},
		"an owner's second hold has the deadline of the first": {"LostByDeadline", func(m *lockerMutant) {
			var first sync.Map
			m.lease = func(_ context.Context, l *leaseMutant) {
				if l.set.Owner != "" {
					d, _ := l.Lease.Deadline()
					of, _ := first.LoadOrStore(l.Key()+l.set.Owner, d)
					l.deadline = func() (time.Time, bool) { return of.(time.Time), true }
				}
			}
		}},
		"an owner frees first": {"ContextEndsFirst", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				if l.set.Owner != "" {
					l.tellsLater(lock.ErrReleased, 20*time.Millisecond)
				}
			}
		}},
		"an owner may enter with a context that has ended": {"CancelBeforeSend", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					if set, _ := lock.ResolveOptions(opts...); set.Owner != "" {
						ctx = context.WithoutCancel(ctx)
					}
					return get(ctx, key, opts...)
				}
			})
		}},
		"an owner's renewals are words": {"RenewByHand", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) { l.renewsInWords(l.set.Owner != "") }
		}},
		"renewals of who may hold for a time only are words": {"RenewByHand", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) { l.renewsInWords(l.set.MaxHold > 0) }
		}},
		"renewals of long leases are words": {"RenewByHand", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) { l.renewsInWords(l.set.TTL >= 20*time.Second) }
		}},
		"who may hold for a time only is renewed": {"WithoutRenewalEnds LostByDeadline", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					return get(ctx, key, rewritten(opts, func(s *lock.Settings) { s.NoRenewal = s.NoRenewal && s.MaxHold == 0 })...)
				}
			})
		}},
		"a label takes the maximum hold away": {"MaxHoldEnds", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					return get(ctx, key, rewritten(opts, func(s *lock.Settings) {
						if s.Label != "" {
							s.MaxHold = 0
						}
					})...)
				}
			})
		}},
		"leases with a label are released by close": {"CloseEndsHolds", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				if l.set.Label != "" {
					l.tells(and(lock.ErrClosed, lock.ErrReleased))
				}
			}
		}},
		"close takes the token": {"CloseEndsHolds", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) { l.noTokenAfter(lock.ErrClosed) }
		}},
		"a maximum hold takes the token": {"MaxHoldEnds", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) { l.noTokenAfter(lock.ErrMaxHold) }
		}},
		"a release takes the token": {"TokenStable", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) { l.noTokenAfter(lock.ErrReleased) }
		}},
		"a lease that Close ended has a deadline": {"CloseEndsHolds", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				last, _ := l.Lease.Deadline()
				l.deadline = func() (time.Time, bool) {
					if errors.Is(context.Cause(l.Lease.Context()), lock.ErrClosed) {
						return last, true
					}
					return l.Lease.Deadline()
				}
			}
		}},
		"after close a renewal says closed, and no more": {"CloseEndsHolds", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.renew = func(ctx context.Context) error {
					err := l.Lease.Renew(ctx)
					if errors.Is(err, lock.ErrClosed) {
						return lock.ErrClosed
					}
					return err
				}
			}
		}},
		"after close each release says closed": {"CloseEndsHolds", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.release = func(ctx context.Context) error {
					err := l.Lease.Release(ctx)
					if errors.Is(context.Cause(l.Lease.Context()), lock.ErrClosed) {
						return lock.ErrClosed
					}
					return err
				}
			}
		}},
		"a key that was waited for comes back changed": {"HandsOut", waitedFor(func(l *leaseMutant) { l.Lease = renamed{l.Lease} })},
		"the context of what was waited for carries values": {"CauseIsStable", waitedFor(func(l *leaseMutant) {
			l.ctx = valued{l.ctx, l.call}
		})},
		"who has waited is told of a removal late": {"LostOnRemoval", waitedFor(func(l *leaseMutant) {
			l.tellsLater(lock.ErrTakenOver, 20*time.Second)
		})},
		"who has waited is told of a removal as of an expiry": {"LostOnRemoval", waitedFor(func(l *leaseMutant) {
			l.tells(instead(lock.ErrTakenOver, lock.ErrExpired))
		})},
		"what was waited for is released by close": {"CloseEndsHolds", waitedFor(func(l *leaseMutant) {
			l.tells(instead(lock.ErrClosed, lock.ErrReleased))
		})},
		"what was waited for is not released with a context that has ended": {"ReleaseDetached", waitedFor(func(l *leaseMutant) { l.keptByEnded() })},
		"an owner's hold is not released with a context that has ended":     {"ReleaseDetached", owned(func(l *leaseMutant) { l.keptByEnded() })},
		"an owner's deadline is too late":                                   {"DeadlineFromSend ServerOutlivesD", owned(func(l *leaseMutant) { l.believes(40 * time.Millisecond) })},
		"the deadline of a lease with a label is too late": {"DeadlineFromSend ServerOutlivesD", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				if l.set.Label != "" {
					l.believes(40 * time.Millisecond)
				}
			}
		}},
		"an owner's deadline outlives the removal of its record": {"DeadlineEnds", owned(func(l *leaseMutant) { l.outlivesRemoval() })},
		"the deadline of what was waited for outlives the removal of its record": {"DeadlineEnds", waitedFor(func(l *leaseMutant) {
			l.outlivesRemoval()
		})},
		"an owner who gives up is not told that somebody holds the key": {"WaiterGivesUp", func(m *lockerMutant) {
			m.givesUpInSilence(func(s lock.Settings) bool { return s.Owner != "" })
		}},
		"who has a label and gives up is not told that somebody holds the key": {"WaiterGivesUp", func(m *lockerMutant) {
			m.givesUpInSilence(func(s lock.Settings) bool { return s.Label != "" })
		}},
		"an owner's TTL is cut to whole seconds": {"TTLGrain", func(m *lockerMutant) {
			m.ownersTTL(func(ttl time.Duration) time.Duration { return max(ttl.Truncate(time.Second), min(ttl, time.Second)) })
		}},
		"an owner's TTL is raised to whole seconds": {"TTLGrain", func(m *lockerMutant) {
			m.ownersTTL(func(ttl time.Duration) time.Duration { return (ttl + time.Second - 1).Truncate(time.Second) })
		}},
		"an owner's TTL is raised to the smallest": {"TTLRange TTLGrain", func(m *lockerMutant) {
			m.ownersTTL(func(ttl time.Duration) time.Duration { return max(ttl, m.Client.Guarantees().MinTTL) })
		}},
		"an owner's holds that have run out count": {"ReentrantLimit", func(m *lockerMutant) {
			var mu sync.Mutex
			counted := map[string]int{}
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					set, _ := lock.ResolveOptions(opts...)
					mu.Lock()
					defer mu.Unlock()
					if set.Owner != "" && counted[key+set.Owner] == backend.MaxHolds {
						return nil, lock.ErrTooManyHolds
					}
					l, err := get(ctx, key, opts...)
					if err == nil {
						counted[key+set.Owner]++
					}
					return l, err
				}
			})
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.release = func(ctx context.Context) error {
					err := l.Lease.Release(ctx)
					if mu.Lock(); err == nil {
						counted[l.Key()+l.set.Owner]--
					}
					mu.Unlock()
					return err
				}
			}
		}},
		"who renews late and has no time is told of that only": {"EndedContexts", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.renew = func(ctx context.Context) error {
					if err := ctx.Err(); err != nil {
						return err
					}
					return l.Lease.Renew(ctx)
				}
			}
		}},
		"who releases a lost lease and has no time is told of that only": {"EndedContexts", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.release = func(ctx context.Context) error {
					err := l.Lease.Release(ctx)
					if errors.Is(err, lock.ErrLost) && ctx.Err() != nil {
						return ctx.Err()
					}
					return err
				}
			}
		}},
		"leaks": {"NoLeak NothingKept", func(m *lockerMutant) {
			m.lease = func(context.Context, *leaseMutant) { go time.Sleep(20 * time.Second) }
		}},
	} {
		atOnce(t, &all, name, func(t *testing.T) {
			store := memlock.NewStore(nil)
			cfg := memory()
			cfg.Open = func(ctx context.Context) (lock.Locker, error) {
				l, err := memlock.New(ctx, &memlock.Options{Store: store, Lock: lock.Options{TTL: cfg.TTL}})
				if err != nil {
					return nil, err
				}
				m := &lockerMutant{Client: l, try: l.TryAcquire, acquire: l.Acquire, close: l.Close}
				c.change(m)
				return m, nil
			}
			cfg.OpenBackend = nil
			cfg.Remove = func(_ context.Context, key string) error { store.Remove(key); return nil }
			mustFail(t, cfg, c.rules)
		})
	}
	all.Wait()
}

// waitedFor changes the leases for which Acquire had to wait.
func waitedFor(change func(l *leaseMutant)) func(*lockerMutant) {
	type waited struct{ lock.Lease }
	return func(m *lockerMutant) {
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, err := m.Client.TryAcquire(ctx, key, opts...)
			if !errors.Is(err, lock.ErrHeld) {
				return l, err
			}
			if l, err = m.Client.Acquire(ctx, key, opts...); err == nil {
				l = waited{l}
			}
			return l, err
		}
		m.lease = func(ctx context.Context, l *leaseMutant) {
			if _, ok := l.Lease.(waited); ok {
				l.call = ctx
				change(l)
			}
		}
	}
}

// tellsOwner has refusals tell the owner who was refused, in other characters.
func tellsOwner(encode func(string) string) func(*lockerMutant) {
	return func(m *lockerMutant) {
		m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, err := m.Client.TryAcquire(ctx, key, opts...)
			if set, _ := lock.ResolveOptions(opts...); err != nil && set.Owner != "" {
				err = fmt.Errorf("for %s: %w", encode(set.Owner), err)
			}
			return l, err
		}
	}
}

// watchesLate has those who wait for some holds hear of no release for a while that comes just
// after they were refused. It is asked about the options of holder and waiter, and whether the
// holder's Locker was closed.
func watchesLate(deaf time.Duration, when func(holds, waits lock.Settings, closed bool) bool) func(*lockerMutant) {
	type hold struct {
		lock.Settings
		closed *atomic.Bool // the Locker
	}
	var holds sync.Map // of all Lockers, by key
	return func(m *lockerMutant) {
		var closed atomic.Bool
		m.close = func() error {
			closed.Store(true)
			return m.Client.Close()
		}
		m.lease = func(_ context.Context, l *leaseMutant) { holds.Store(l.Key(), hold{l.set, &closed}) }
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, err := m.Client.TryAcquire(ctx, key, opts...)
			if !errors.Is(err, lock.ErrHeld) {
				return l, err
			}
			time.Sleep(time.Millisecond) // the way to the server
			set, _ := lock.ResolveOptions(opts...)
			if free, err := m.Client.TryAcquire(ctx, key); err == nil {
				_ = free.Release(ctx)
				if of, ok := holds.Load(key); ok && when(of.(hold).Settings, set, of.(hold).closed.Load()) {
					select {
					case <-time.After(deaf):
					case <-ctx.Done():
					}
				}
			}
			return m.Client.Acquire(ctx, key, opts...)
		}
	}
}

// handedOver changes what Acquire asks for, and gets, behind a holder of the same Locker. It is
// told since when that was waited for.
func handedOver(asks func(*lock.Settings), change func(l *leaseMutant, since time.Time)) func(*lockerMutant) {
	type handed struct {
		lock.Lease
		since time.Time
	}
	return func(m *lockerMutant) {
		var holds sync.Map // of this Locker, by key
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			if h, ok := holds.Load(key); !ok || h.(lock.Lease).Context().Err() != nil {
				return m.Client.Acquire(ctx, key, opts...)
			}
			since := time.Now()
			if asks != nil {
				opts = rewritten(opts, asks)
			}
			l, err := m.Client.Acquire(ctx, key, opts...)
			if err == nil {
				l = handed{l, since}
			}
			return l, err
		}
		m.lease = func(_ context.Context, l *leaseMutant) {
			holds.Store(l.Key(), l.Lease)
			if h, ok := l.Lease.(handed); ok && change != nil {
				change(l, h.since)
			}
		}
	}
}

// owned changes the leases that have an owner.
func owned(change func(l *leaseMutant)) func(*lockerMutant) {
	return func(m *lockerMutant) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			if l.set.Owner != "" {
				change(l)
			}
		}
	}
}

// keptByEnded has a release with a context that has ended do nothing.
func (l *leaseMutant) keptByEnded() {
	l.release = func(ctx context.Context) error {
		if ctx.Err() == nil {
			return l.Lease.Release(ctx)
		}
		return nil
	}
}

// noTokenAfter has the token go with the hold.
func (l *leaseMutant) noTokenAfter(end error) {
	l.token = func() uint64 {
		if errors.Is(context.Cause(l.Lease.Context()), end) {
			return 0
		}
		return l.Lease.Token()
	}
}

// believes moves the deadline.
func (l *leaseMutant) believes(longer time.Duration) {
	l.deadline = func() (time.Time, bool) {
		d, ok := l.Lease.Deadline()
		return d.Add(longer), ok
	}
}

// outlivesRemoval leaves the lease a deadline when its record was removed.
func (l *leaseMutant) outlivesRemoval() {
	l.deadline = func() (time.Time, bool) {
		if errors.Is(context.Cause(l.Lease.Context()), lock.ErrTakenOver) {
			return time.Now().Add(l.set.TTL / 2), true
		}
		return l.Lease.Deadline()
	}
}

// givesUpInSilence has those who wait in vain get the error of their contexts only.
func (m *lockerMutant) givesUpInSilence(who func(lock.Settings) bool) {
	m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
		l, err := m.Client.Acquire(ctx, key, opts...)
		if set, _ := lock.ResolveOptions(opts...); err != nil && ctx.Err() != nil && who(set) {
			err = ctx.Err()
		}
		return l, err
	}
}

// ownersTTL changes the TTL of owners.
func (m *lockerMutant) ownersTTL(change func(time.Duration) time.Duration) {
	m.both(func(get engine.Getter) engine.Getter {
		return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			return get(ctx, key, rewritten(opts, func(s *lock.Settings) {
				if s.Owner != "" && s.TTL > 0 {
					s.TTL = change(s.TTL)
				}
			})...)
		}
	})
}

type valued struct {
	context.Context
	values context.Context
}

func (v valued) Value(key any) any { return v.values.Value(key) }

// tells gives the lease a context that ends with another cause.
func (l *leaseMutant) tells(other func(cause error) error) {
	ctx, end := context.WithCancelCause(context.Background())
	inner := l.Lease.Context()
	follow := func() {
		if inner.Err() != nil {
			end(other(context.Cause(inner)))
		}
	}
	context.AfterFunc(inner, follow)
	l.ctx = following{ctx, follow}
	l.release = func(ctx context.Context) error {
		defer follow()
		return l.Lease.Release(ctx)
	}
}

// tellsLater gives the lease a context that ends later, when it ends for that cause.
func (l *leaseMutant) tellsLater(cause error, by time.Duration) {
	ctx, end := context.WithCancelCause(context.Background())
	l.ctx = ctx
	inner := l.Lease.Context()
	context.AfterFunc(inner, func() {
		if errors.Is(context.Cause(inner), cause) {
			time.Sleep(by)
		}
		end(context.Cause(inner))
	})
}

// renewsInWords has renewals by hand change nothing where it is so.
func (l *leaseMutant) renewsInWords(so bool) {
	if so {
		l.renew = func(context.Context) error { return l.ctx.Err() }
	}
}

// and adds a kind to the causes that match the first.
func and(first, more error) func(cause error) error {
	return func(cause error) error {
		if errors.Is(cause, first) {
			return errors.Join(cause, more)
		}
		return cause
	}
}

// instead gives another cause for those that match the first.
func instead(first, other error) func(cause error) error {
	return func(cause error) error {
		if errors.Is(cause, first) {
			return other
		}
		return cause
	}
}

// following is a context that looks at another one first.
type following struct {
	context.Context
	follow func()
}

func (f following) Err() error {
	f.follow()
	return f.Context.Err()
}

// remembers leaves the lease the deadline that it had when it was released.
func (l *leaseMutant) remembers() {
	var last atomic.Pointer[time.Time]
	l.release = func(ctx context.Context) error {
		if d, ok := l.Lease.Deadline(); ok && l.Lease.Context().Err() == nil {
			last.Store(&d)
		}
		return l.Lease.Release(ctx)
	}
	l.deadline = func() (time.Time, bool) {
		if d := last.Load(); d != nil {
			return *d, true
		}
		return l.Lease.Deadline()
	}
}

type renamed struct{ lock.Lease }

func (r renamed) Key() string { return r.Lease.Key() + " " }
