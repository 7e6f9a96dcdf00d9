package rules_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// with says what was asked for.
func with(opts []lock.Option) lock.Settings {
	set, _ := lock.ResolveOptions(opts...)
	return set
}

// option is one that changes what was asked for before it.
func option(f func(s *lock.Settings)) lock.Option { return f }

// Mutants that treat a lease in another way because of what it was asked for with, or
// because there are many of them.
func TestMutantsOfKinds(t *testing.T) {
	t.Parallel()
	// lateWaits has what matches be granted late when it had to wait.
	lateWaits := func(m *lockerMutant, matches func(s lock.Settings) bool) {
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			if l, err := m.Client.TryAcquire(ctx, key, opts...); err == nil || !matches(with(opts)) {
				if errors.Is(err, lock.ErrHeld) {
					return m.Client.Acquire(ctx, key, opts...)
				}
				return l, err
			}
			for {
				l, err := m.Client.TryAcquire(ctx, key, opts...)
				if err == nil || ctx.Err() != nil || !errors.Is(err, lock.ErrHeld) {
					return l, err
				}
				time.Sleep(700 * time.Millisecond)
			}
		}
	}
	limited := func(s lock.Settings) bool { return s.MaxHold > 0 }
	unrenewed := func(s lock.Settings) bool { return s.NoRenewal }
	owned := func(s lock.Settings) bool { return s.Owner != "" }
	// goesOn has an acquisition that gave up go on in the background.
	goesOn := func(m *lockerMutant, matches func(s lock.Settings) bool) {
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, err := m.Client.Acquire(ctx, key, opts...)
			if err != nil && ctx.Err() != nil && matches(with(opts)) {
				go func() {
					ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
					defer cancel()
					_, _ = m.Client.Acquire(ctx, key, opts...)
				}()
			}
			return l, err
		}
	}
	// counted numbers the leases of the Locker that match.
	counted := func(m *lockerMutant, matches func(key string, s lock.Settings) bool, f func(n int64, opts []lock.Option) []lock.Option) {
		var n atomic.Int64
		m.both(func(get engine.Getter) engine.Getter {
			return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				if matches(key, with(opts)) {
					opts = f(n.Add(1), opts)
				}
				return get(ctx, key, opts...)
			}
		})
	}
	// keeps has what matches be held on by the server when its Locker is closed.
	keeps := func(m *lockerMutant, b backend.Backend, which func(n int, again bool) bool) {
		var mu sync.Mutex
		var kept []backend.Request
		n, seen := 0, map[string]bool{}
		m.both(func(get engine.Getter) engine.Getter {
			return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := get(ctx, key, opts...)
				if err == nil {
					mu.Lock()
					if which(n, seen[key]) {
						kept = append(kept, backend.Request{Key: key, ID: backend.NewID(), TTL: with(opts).TTL})
					}
					n, seen[key] = n+1, true
					mu.Unlock()
				}
				return l, err
			}
		})
		m.close = func() error {
			err := m.Client.Close()
			for _, req := range kept {
				_, _ = b.Try(context.Background(), req)
			}
			return err
		}
	}
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		rules  string
		change func(m *lockerMutant, b backend.Backend)
	}{
		"who waits with a maximum hold wakes late":  {"WaiterWakes", func(m *lockerMutant, _ backend.Backend) { lateWaits(m, limited) }},
		"who waits without renewal wakes late":      {"WaiterWakes WakesAtAnyMoment", func(m *lockerMutant, _ backend.Backend) { lateWaits(m, unrenewed) }},
		"who waits with a maximum hold has no turn": {"WaiterOrderLocal", func(m *lockerMutant, _ backend.Backend) { lateWaits(m, limited) }},
		"an owner that gave up goes on":             {"WaiterGivesUp", func(m *lockerMutant, _ backend.Backend) { goesOn(m, owned) }},
		"who gave up with a maximum hold goes on":   {"WaiterGivesUp", func(m *lockerMutant, _ backend.Backend) { goesOn(m, limited) }},
		"the 33rd waiter of a Locker waits for ever": {"ManyWaiters", func(m *lockerMutant, _ backend.Backend) {
			var waiting atomic.Int64
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				if n := waiting.Add(1); n > 32 {
					<-ctx.Done()
					return nil, errors.Join(ctx.Err(), lock.ErrHeld)
				}
				l, err := m.Client.Acquire(ctx, key, opts...)
				waiting.Add(-1)
				return l, err
			}
		}},
		"order for 16 waiters": {"WaiterOrderLocal", func(m *lockerMutant, _ backend.Backend) {
			var waiting atomic.Int64
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				n := waiting.Add(1)
				defer waiting.Add(-1)
				if n > 16 && n%2 == 0 {
					for waiting.Load() > 16 && ctx.Err() == nil {
						time.Sleep(time.Millisecond)
					}
				}
				return m.Client.Acquire(ctx, key, opts...)
			}
		}},
		"Close gives back 32 leases":           {"CloseEndsHolds", func(m *lockerMutant, b backend.Backend) { keeps(m, b, func(n int, _ bool) bool { return n >= 32 }) }},
		"Close gives back one of each owner's": {"CloseEndsHolds", func(m *lockerMutant, b backend.Backend) { keeps(m, b, func(_ int, again bool) bool { return again }) }},
		"no token with a maximum hold": {"TokenIncreases", func(m *lockerMutant, _ backend.Backend) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				if limited(l.set) {
					l.token = func() uint64 { return 0 }
				}
			}
		}},
		"a token of before without renewal": {"TokenIncreases", func(m *lockerMutant, _ backend.Backend) {
			var last atomic.Uint64
			m.lease = func(_ context.Context, l *leaseMutant) {
				before := last.Swap(l.Lease.Token())
				if unrenewed(l.set) && before > 0 {
					l.token = func() uint64 { return before }
				}
			}
		}},
		"a try that the server did not get keeps the key for a later one": {"UnavailableIsTold", func(m *lockerMutant, b backend.Backend) {
			m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := m.Client.TryAcquire(ctx, key, opts...)
				if w, ok := b.(backend.Wrapper); ok && errors.Is(err, lock.ErrUnavailable) && owned(with(opts)) {
					_, _ = w.Unwrap().Try(ctx, backend.Request{Key: key, ID: backend.NewID(), TTL: lock.DefaultTTL})
				}
				return l, err
			}
		}},
		"an owner is not told that the server is away": {"UnavailableIsTold", func(m *lockerMutant, _ backend.Backend) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					l, err := get(ctx, key, opts...)
					if errors.Is(err, lock.ErrUnavailable) && owned(with(opts)) {
						err = fmt.Errorf("lock: acquiring: %w", ctx.Err())
					}
					return l, err
				}
			})
		}},
		"silence is a holder to an owner": {"SilenceIsNotHeld", func(m *lockerMutant, _ backend.Backend) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					l, err := get(ctx, key, opts...)
					if err != nil && ctx.Err() != nil && owned(with(opts)) {
						err = errors.Join(err, lock.ErrHeld)
					}
					return l, err
				}
			})
		}},
		"an owner's try waits beside its own Acquire": {"TryBesideWaiters", func(m *lockerMutant, _ backend.Backend) {
			var waiting sync.Map
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				if s := with(opts); owned(s) {
					waiting.Store(key+s.Owner, true)
					defer waiting.Delete(key + s.Owner)
				}
				return m.Client.Acquire(ctx, key, opts...)
			}
			m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				if s := with(opts); owned(s) {
					if _, ok := waiting.Load(key + s.Owner); ok {
						return m.Client.Acquire(ctx, key, opts...)
					}
				}
				return m.Client.TryAcquire(ctx, key, opts...)
			}
		}},
		"an option stays from one Acquire to the next": {"OptionsOfOneCall", func(m *lockerMutant, _ backend.Backend) {
			var mu sync.Mutex
			var last []lock.Option
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				mu.Lock()
				before := last
				last = opts
				mu.Unlock()
				if s := with(before); s.NoRenewal {
					opts = append(opts[:len(opts):len(opts)], lock.WithoutRenewal())
				}
				return m.Client.Acquire(ctx, key, opts...)
			}
		}},
		"a hand-over in the Locker drops the label": {"HeldDetails", func(m *lockerMutant, _ backend.Backend) {
			var own sync.Map
			m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				own.Store(key, true)
				return m.Client.TryAcquire(ctx, key, opts...)
			}
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				if _, handsOver := own.Load(key); handsOver {
					opts = append(opts[:len(opts):len(opts)], option(func(s *lock.Settings) { s.Label = "" }))
				}
				return m.Client.Acquire(ctx, key, opts...)
			}
		}},
		"a refusal by the own Locker says nothing": {"HeldDetails", func(m *lockerMutant, _ backend.Backend) {
			var own sync.Map
			m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := m.Client.TryAcquire(ctx, key, opts...)
				if _, held := own.Load(key); held && errors.Is(err, lock.ErrHeld) {
					return nil, lock.ErrHeld
				}
				if err == nil {
					own.Store(key, true)
				}
				return l, err
			}
		}},
		"an owner's lease of the default TTL is not renewed": {"Defaults", func(m *lockerMutant, _ backend.Backend) {
			counted(m, func(_ string, s lock.Settings) bool { return s.TTL == 0 && owned(s) },
				func(_ int64, opts []lock.Option) []lock.Option {
					return append(opts[:len(opts):len(opts)], lock.WithoutRenewal())
				})
		}},
		"an owner's Acquire renews always": {"WithoutRenewalEnds", func(m *lockerMutant, _ backend.Backend) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				if owned(with(opts)) {
					opts = append(opts[:len(opts):len(opts)], option(func(s *lock.Settings) { s.NoRenewal = false }))
				}
				return m.Client.Acquire(ctx, key, opts...)
			}
		}},
		"the 11th hold of an owner is not renewed": {"ManyLeases", func(m *lockerMutant, _ backend.Backend) {
			counted(m, func(_ string, s lock.Settings) bool { return owned(s) }, func(n int64, opts []lock.Option) []lock.Option {
				if n > 10 {
					opts = append(opts[:len(opts):len(opts)], lock.WithoutRenewal())
				}
				return opts
			})
		}},
		"the 129th lease is not renewed": {"ManyLeases", func(m *lockerMutant, _ backend.Backend) {
			counted(m, func(string, lock.Settings) bool { return true }, func(n int64, opts []lock.Option) []lock.Option {
				if n > 128 {
					opts = append(opts[:len(opts):len(opts)], lock.WithoutRenewal())
				}
				return opts
			})
		}},
		"a release with an ended context frees first": {"ContextEndsFirst", func(m *lockerMutant, _ backend.Backend) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				ctx, end := context.WithCancelCause(context.Background())
				l.ctx = ctx
				context.AfterFunc(l.Lease.Context(), func() {
					if l.late.Load() {
						time.Sleep(20 * time.Millisecond)
					}
					end(context.Cause(l.Lease.Context()))
				})
				l.release = func(ctx context.Context) error {
					l.late.Store(ctx.Err() != nil)
					return l.Lease.Release(ctx)
				}
			}
		}},
		"Close ends the contexts of further leases late": {"ContextEndsFirst", func(m *lockerMutant, _ backend.Backend) {
			var n atomic.Int64
			m.lease = func(_ context.Context, l *leaseMutant) {
				if n.Add(1) > 1 {
					l.tellsLater(lock.ErrClosed, 200*time.Millisecond)
				}
			}
		}},
		"Close ends the contexts of owners late": {"ContextEndsFirst", func(m *lockerMutant, _ backend.Backend) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				if owned(l.set) {
					l.tellsLater(lock.ErrClosed, 200*time.Millisecond)
				}
			}
		}},
		"a release with an ended context ends all holds of the owner": {"EndedContexts", func(m *lockerMutant, _ backend.Backend) {
			var mu sync.Mutex
			holds := map[string][]lock.Lease{}
			m.lease = func(_ context.Context, l *leaseMutant) {
				if !owned(l.set) {
					return
				}
				id := l.Key() + l.set.Owner
				mu.Lock()
				holds[id] = append(holds[id], l.Lease)
				mu.Unlock()
				l.release = func(ctx context.Context) error {
					if ctx.Err() == nil {
						return l.Lease.Release(ctx)
					}
					mu.Lock()
					defer mu.Unlock()
					for _, other := range holds[id] {
						if other != l.Lease {
							_ = other.Release(ctx)
						}
					}
					delete(holds, id)
					return l.Lease.Release(ctx)
				}
			}
		}},
		"an Acquire waits for the key above its own": {"IndependentKeys", func(m *lockerMutant, b backend.Backend) {
			in, _ := backend.As[backend.Inspector](b)
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				for up := path.Dir(key); strings.Contains(up, "IndependentKeys/"); up = path.Dir(up) {
					for _, err := in.Inspect(ctx, up); err == nil && ctx.Err() == nil; _, err = in.Inspect(ctx, up) {
						time.Sleep(10 * time.Millisecond)
					}
				}
				return m.Client.Acquire(ctx, key, opts...)
			}
		}},
		"a bad maximum hold is refused after a request": {"MaxHoldEnds", func(m *lockerMutant, b backend.Backend) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					l, err := get(ctx, key, opts...)
					if errors.Is(err, lock.ErrInvalid) {
						_, _ = b.Try(ctx, backend.Request{Key: key, ID: backend.NewID(), TTL: time.Second})
					}
					return l, err
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

// A run whose time is bounded asks without a deadline all the same, as most users do.
func TestBoundedRunAsksWithoutADeadline(t *testing.T) {
	t.Parallel()
	virtually(t, func(t *testing.T) {
		cfg := wrapped(func(m *lockerMutant, _ backend.Backend) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				if _, bounded := ctx.Deadline(); !bounded {
					time.Sleep(700 * time.Millisecond)
				}
				return m.Client.Acquire(ctx, key, opts...)
			}
		})
		cfg.Only = []string{"WaiterWakes"}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		rep, err := conformance.Check(ctx, cfg)
		require.NoError(t, err)
		res, _ := rep.Result("WaiterWakes")
		assert.Equal(t, conformance.Fail, res.Verdict, "%s", res.Evidence)
	})
}
