package rules_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// Mutants of the policy over a backend, which Config.Wrap puts between the suite and
// its faults.
func TestMutantPolicies(t *testing.T) {
	t.Parallel()
	// again asks until the key is granted, with a pause between the requests.
	again := func(m *lockerMutant, pause func(ctx context.Context, key string)) {
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			for {
				l, err := m.Client.TryAcquire(ctx, key, opts...)
				if err == nil || ctx.Err() != nil || !errors.Is(err, lock.ErrHeld) && !errors.Is(err, lock.ErrUnavailable) {
					return l, err
				}
				pause(ctx, key)
			}
		}
	}
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		rules  string
		change func(m *lockerMutant, b backend.Backend)
	}{
		"doubles its pauses, and adds nothing to them": {"NoLockstep", func(m *lockerMutant, _ backend.Backend) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				for pause := 25 * time.Millisecond; ; pause = min(2*pause, time.Second/4) {
					l, err := m.Client.TryAcquire(ctx, key, opts...)
					if err == nil || ctx.Err() != nil {
						return l, err
					}
					time.Sleep(pause)
				}
			}
		}},
		"wakes when the lease that it saw can have ended": {"NoLockstep", func(m *lockerMutant, _ backend.Backend) {
			again(m, func(ctx context.Context, key string) {
				pause := 100*time.Millisecond + rand.N(100*time.Millisecond)
				var held *lock.HeldError
				if _, err := m.Client.TryAcquire(ctx, key); errors.As(err, &held) && held.Remaining > 0 {
					pause = held.Remaining + time.Millisecond
				}
				time.Sleep(pause)
			})
		}},
		"renews at 60 % of the TTL": {"RenewKeeps ManyLeases", func(m *lockerMutant, _ backend.Backend) {
			m.renewsEvery(0.6, func(*sync.Map, string) bool { return false })
		}},
		"asks the server for its guarantees": {"GuaranteesAreStable", func(m *lockerMutant, b backend.Backend) {
			m.says = func(g backend.Guarantees) backend.Guarantees {
				_ = b.Release(context.Background(), backend.Hold{Key: "any", ID: backend.NewID()})
				return g
			}
		}},
		"asks the server for its guarantees in the background": {"GuaranteesAreStable", func(m *lockerMutant, b backend.Backend) {
			m.says = func(g backend.Guarantees) backend.Guarantees {
				go func() { _ = b.Release(context.Background(), backend.Hold{Key: "any", ID: backend.NewID()}) }()
				return g
			}
		}},
		"asks the server for the deadline": {"LeaseIsLocal", func(m *lockerMutant, b backend.Backend) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				held, _ := lock.HeldOn[backend.Backend](l.Lease)
				l.deadline = func() (time.Time, bool) {
					if _, err := b.Renew(l.ctx, held.Hold); err != nil {
						return time.Time{}, false
					}
					return l.Lease.Deadline()
				}
			}
		}},
		"sends, and looks at the context afterwards": {"CancelBeforeSend", func(m *lockerMutant, _ backend.Backend) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					l, err := get(context.WithoutCancel(ctx), key, opts...)
					if err == nil && ctx.Err() != nil {
						_ = l.Release(ctx)
						return nil, ctx.Err()
					}
					return l, err
				}
			})
		}},
		"lets the server judge the TTL": {"TTLGrain", func(m *lockerMutant, b backend.Backend) {
			m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := m.Client.TryAcquire(ctx, key, opts...)
				if errors.Is(err, lock.ErrInvalid) {
					_ = b.Release(ctx, backend.Hold{Key: key, ID: backend.NewID()})
				}
				return l, err
			}
		}},
		"a watch of each wait goes on": {"NothingKept", func(m *lockerMutant, b backend.Backend) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				if w, ok := backend.As[backend.Watcher](b); ok {
					_, _ = w.Watch(context.WithoutCancel(ctx), key)
				}
				return m.Client.Acquire(ctx, key, opts...)
			}
		}},
		"a watch of each wait that got the key goes on": {"NothingKept", func(m *lockerMutant, b backend.Backend) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (l lock.Lease, err error) {
				watching, stop := context.WithCancel(context.WithoutCancel(ctx))
				defer func() {
					if err != nil {
						stop()
					}
				}()
				if w, ok := backend.As[backend.Watcher](b); ok {
					_, _ = w.Watch(watching, key)
				}
				return m.Client.Acquire(ctx, key, opts...)
			}
		}},
		"hands over to a caller of its own before the holder knows": {"ContextEndsFirst", func(m *lockerMutant, _ backend.Backend) {
			var waiting atomic.Int64
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				waiting.Add(1)
				defer waiting.Add(-1)
				return m.Client.Acquire(ctx, key, opts...)
			}
			m.lease = func(_ context.Context, l *leaseMutant) {
				inner := l.Lease.Context()
				told, tell := context.WithCancelCause(context.WithoutCancel(inner))
				context.AfterFunc(inner, func() {
					if waiting.Load() > 0 {
						time.Sleep(30 * time.Millisecond)
					}
					tell(context.Cause(inner))
				})
				l.ctx = told
				l.release = func(ctx context.Context) error {
					if waiting.Load() == 0 {
						tell(lock.ErrReleased)
					}
					return l.Lease.Release(ctx)
				}
			}
		}},
		"Acquire cuts a TTL to whole seconds": {"TTLGrain", func(m *lockerMutant, _ backend.Backend) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				return m.Client.Acquire(ctx, key, rewritten(opts, func(s *lock.Settings) {
					if s.TTL > time.Second {
						s.TTL = s.TTL.Truncate(time.Second)
					}
				})...)
			}
		}},
		"tells the owner where the outcome is unknown": {"NoSecretsInErrors", func(m *lockerMutant, _ backend.Backend) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					l, err := get(ctx, key, opts...)
					if errors.Is(err, lock.ErrOutcomeUnknown) {
						set, _ := lock.ResolveOptions(opts...)
						err = fmt.Errorf("for %s: %w", set.Owner, err)
					}
					return l, err
				}
			})
		}},
		"Close tells whose holds it could not give back": {"NoSecretsInErrors", func(m *lockerMutant, _ backend.Backend) {
			var last atomic.Value
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					set, _ := lock.ResolveOptions(opts...)
					l, err := get(ctx, key, opts...)
					if errors.Is(err, lock.ErrUnavailable) {
						last.Store(set.Owner)
					}
					return l, err
				}
			})
			m.close = func() error {
				err := m.Client.Close()
				if owner := last.Load(); owner != nil {
					err = errors.Join(err, fmt.Errorf("the holds of %s stay", owner))
				}
				return err
			}
		}},
		"a breaker that stays open": {"UnavailableIsTold", func(m *lockerMutant, _ backend.Backend) {
			var failures, open atomic.Int64
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					if time.Since(time.Unix(0, open.Load())) < 30*time.Second {
						return nil, lock.ErrUnavailable
					}
					l, err := get(ctx, key, opts...)
					if !errors.Is(err, lock.ErrUnavailable) {
						failures.Store(0)
					} else if failures.Add(1) > 3 {
						open.Store(time.Now().UnixNano())
					}
					return l, err
				}
			})
		}},
		"a key that was taken away is avoided": {"LostOnRemoval", func(m *lockerMutant, _ backend.Backend) {
			var lost sync.Map
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.release = func(ctx context.Context) error {
					err := l.Lease.Release(ctx)
					if errors.Is(err, lock.ErrTakenOver) {
						lost.Store(l.Lease.Key(), true)
					}
					return err
				}
			}
			m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				if _, taken := lost.Load(key); taken {
					return nil, &lock.HeldError{Key: key}
				}
				return m.Client.TryAcquire(ctx, key, opts...)
			}
		}},
		"a timer for each call": {"NothingKept", func(m *lockerMutant, _ backend.Backend) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					time.AfterFunc(10*time.Minute, func() { _ = ctx.Err() })
					return get(ctx, key, opts...)
				}
			})
		}},
		"who cancels is not told that the server is away": {"UnavailableIsTold", func(m *lockerMutant, _ backend.Backend) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := m.Client.Acquire(ctx, key, opts...)
				if errors.Is(err, context.Canceled) && errors.Is(err, lock.ErrUnavailable) {
					err = ctx.Err()
				}
				return l, err
			}
		}},
		"what a Locker promises changes with a refusal": {"GuaranteesAreStable", func(m *lockerMutant, _ backend.Backend) {
			var refused atomic.Bool
			m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := m.Client.TryAcquire(ctx, key, opts...)
				if errors.Is(err, lock.ErrHeld) {
					refused.Store(true)
				}
				return l, err
			}
			m.says = func(g backend.Guarantees) backend.Guarantees {
				g.Fair = g.Fair != refused.Load()
				return g
			}
		}},
		"a try that asks thrice where nobody answers": {"UnavailableIsTold", func(m *lockerMutant, _ backend.Backend) {
			m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				for n := 1; ; n++ {
					l, err := m.Client.TryAcquire(ctx, key, opts...)
					if n == 3 || !errors.Is(err, lock.ErrUnavailable) {
						return l, err
					}
				}
			}
		}},
		"a renewal by hand that failed ends the lease at its deadline": {"RenewTransient", func(m *lockerMutant, _ backend.Backend) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				ctx, end := context.WithCancelCause(context.Background())
				inner := l.Lease.Context()
				l.ctx = ctx
				context.AfterFunc(inner, func() { end(context.Cause(inner)) })
				l.renew = func(ctx context.Context) error {
					err := l.Lease.Renew(ctx)
					if d, ok := l.Lease.Deadline(); ok && err != nil {
						time.AfterFunc(time.Until(d), func() { end(lock.ErrExpired) })
					}
					return err
				}
			}
		}},
		"renews on after a Close that failed": {"CloseUnreachable", func(m *lockerMutant, b backend.Backend) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				held, _ := lock.HeldOn[backend.Backend](l.Lease)
				context.AfterFunc(l.Lease.Context(), func() {
					for range 50 {
						time.Sleep(l.set.TTL / 5)
						if _, err := b.Renew(context.Background(), held.Hold); errors.Is(err, lock.ErrNotHeld) {
							return // it was released
						}
					}
				})
			}
		}},
		"a second release is always well": {"ReleaseUnknown", func(m *lockerMutant, _ backend.Backend) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				again := false
				l.release = func(ctx context.Context) error {
					if again {
						return nil
					}
					again = true
					return l.Lease.Release(ctx)
				}
			}
		}},
		"an entry for each key that was refused": {"NothingKept", func(m *lockerMutant, _ backend.Backend) {
			var last sync.Map // when it was refused last
			m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := m.Client.TryAcquire(ctx, key, opts...)
				if err != nil {
					last.Store(key, time.Now())
				}
				return l, err
			}
		}},
		"an entry for each key": {"NothingKept", func(m *lockerMutant, _ backend.Backend) {
			var mu sync.Mutex
			turns := map[string]*sync.Mutex{}
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					mu.Lock()
					if turns[key] == nil {
						turns[key] = new(sync.Mutex)
					}
					mu.Unlock()
					return get(ctx, key, opts...)
				}
			})
		}},
	} {
		atOnce(t, &all, name, func(t *testing.T) {
			mustFail(t, wrapped(c.change), c.rules)
		})
	}
	all.Wait()
}

func TestWrapIsChecked(t *testing.T) {
	t.Parallel()
	cfg := memory()
	cfg.Wrap = func(backend.Backend, time.Duration) (lock.Locker, error) { return nil, nil }
	cfg.Only = []string{"HandsOut"}
	rep, err := conformance.Check(t.Context(), cfg)
	assert.NoError(t, err)
	assert.Contains(t, rep.Results[0].Evidence, "Config.Wrap returned neither a Locker nor an error")
	cfg.Open, cfg.OpenBackend = func(ctx context.Context) (lock.Locker, error) { return nil, nil }, nil
	_, err = conformance.Check(t.Context(), cfg)
	assert.ErrorContains(t, err, "Config.Wrap needs OpenBackend")
}
