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
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/internal/engine"
	memlock "github.com/mortiselock/lock/memory"
)

// A waitMutant is a Locker that is right in the cases that one thinks of first.
type waitMutant struct {
	rule, says string
	// change is made anew for each run, and is for all Lockers of it.
	change func() func(m *lockerMutant, b backend.Backend)
	around func() around // with a change, that is given what is around the backend
}

func (c waitMutant) config() conformance.Config {
	change := func(*lockerMutant, backend.Backend) {}
	if c.change != nil {
		change = c.change()
	}
	cfg := wrapped(change)
	if c.around != nil {
		around, wrap := c.around(), cfg.Wrap
		cfg.Wrap = func(b backend.Backend, ttl time.Duration) (lock.Locker, error) { return wrap(around(b), ttl) }
	}
	return cfg
}

// mustSayAll has each mutant be caught, for what it does, and the lock without it pass the same rules.
func mustSayAll(t *testing.T, mutants map[string]waitMutant) {
	t.Helper()
	var all sync.WaitGroup
	rules := map[string]bool{}
	for name, c := range mutants {
		rules[c.rule] = true
		atOnce(t, &all, name, func(t *testing.T) { mustSay(t, c.config(), c.rule, c.says) })
	}
	all.Wait()
	for rule := range rules {
		mustPass(t, wrapped(func(*lockerMutant, backend.Backend) {}), rule)
	}
}

func alone(change func(m *lockerMutant, b backend.Backend)) func() func(*lockerMutant, backend.Backend) {
	return func() func(*lockerMutant, backend.Backend) { return change }
}

// sharedCalls has calls that are made while another one is under way return its error.
type sharedCalls struct {
	mu    sync.Mutex
	under *sharedCall
}

type sharedCall struct {
	done chan struct{} // closed when err is set
	err  error
}

func (s *sharedCalls) join(ctx context.Context, call func() error) error {
	s.mu.Lock()
	if c := s.under; c != nil {
		s.mu.Unlock()
		select {
		case <-c.done:
			return c.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	c := &sharedCall{done: make(chan struct{})}
	s.under = c
	s.mu.Unlock()
	c.err = call()
	s.mu.Lock()
	s.under = nil
	s.mu.Unlock()
	close(c.done)
	return c.err
}

func deaf(when func(holds, waits lock.Settings, closed bool) bool) func() func(*lockerMutant, backend.Backend) {
	return func() func(*lockerMutant, backend.Backend) {
		change := watchesLate(3*time.Second, when)
		return func(m *lockerMutant, _ backend.Backend) { change(m) }
	}
}

// pollsSlowly waits by asking every three seconds.
func pollsSlowly(m *lockerMutant, ctx context.Context, key string, opts []lock.Option) (lock.Lease, error) {
	return asksEvery(m, 3*time.Second)(ctx, key, opts...)
}

func asksEvery(m *lockerMutant, pause time.Duration) engine.Getter {
	return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
		for {
			l, err := m.Client.TryAcquire(ctx, key, opts...)
			if err != nil && ctx.Err() != nil {
				return nil, fmt.Errorf("%w: %w", ctx.Err(), lock.ErrHeld)
			}
			if !errors.Is(err, lock.ErrHeld) {
				return l, err
			}
			select {
			case <-ctx.Done():
				return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
			case <-time.After(pause):
			}
		}
	}
}

// behind changes how those wait who come while somebody holds the key. Close ends the contexts
// of these waits.
func behind(m *lockerMutant, b backend.Backend, wait engine.Getter) {
	life, end := context.WithCancel(context.Background())
	last := m.close
	m.close = func() error { end(); return last() }
	m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
		i, ok := backend.As[backend.Inspector](b)
		if !ok || ctx.Err() != nil {
			return m.Client.Acquire(ctx, key, opts...)
		}
		short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
		_, err := i.Inspect(short, key)
		cancel()
		if err != nil {
			return m.Client.Acquire(ctx, key, opts...)
		}
		inner, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		l, err := wait(inner, key, opts...)
		if err != nil && life.Err() != nil && ctx.Err() == nil {
			err = lock.ErrClosed
		}
		return l, err
	}
}

// inTurn has the callers of a Locker ask for a key one at a time, in an order that it is given
// the callers for, who are in that of their arrival.
func inTurn(m *lockerMutant, next func(callers []*caller) *caller) {
	var mu sync.Mutex
	lines := map[string][]*caller{}
	m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
		set := with(opts)
		if set.Owner != "" || ctx.Err() != nil {
			return m.Client.Acquire(ctx, key, opts...)
		}
		me := &caller{ctx: ctx, key: key, Settings: set}
		mu.Lock()
		lines[key] = append(lines[key], me)
		mu.Unlock()
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			if lines[key] = slices.DeleteFunc(lines[key], func(c *caller) bool { return c == me }); len(lines[key]) == 0 {
				delete(lines, key)
			}
		}()
		for {
			mu.Lock()
			turn := next(lines[key]) == me
			mu.Unlock()
			if turn {
				l, err := m.Client.TryAcquire(ctx, key, opts...)
				if err == nil || errors.Is(err, lock.ErrClosed) || errors.Is(err, lock.ErrPermanent) || errors.Is(err, lock.ErrInvalid) || errors.Is(err, lock.ErrUnsupported) {
					return l, err
				}
			}
			select {
			case <-ctx.Done():
				return nil, heldNow(m, ctx, key, opts)
			case <-time.After(21 * time.Millisecond):
			}
		}
	}
}

type caller struct {
	ctx context.Context
	key string
	lock.Settings
}

// keepsOf appends to a list of the Locker, which is never emptied.
func keepsOf(m *lockerMutant, of func(ctx context.Context, key string, l lock.Lease, err error, waited bool) (any, bool)) {
	var mu sync.Mutex
	var kept []any
	keep := func(get engine.Getter) engine.Getter {
		return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			begun := time.Now()
			l, err := get(ctx, key, opts...)
			if x, ok := of(ctx, key, l, err, time.Since(begun) > 0); ok {
				mu.Lock()
				defer mu.Unlock()
				kept = append(kept, x)
			}
			return l, err
		}
	}
	m.try, m.acquire = keep(m.try), keep(m.acquire)
}

var waitMutants = map[string]waitMutant{
	"a wait with a deadline asks every three seconds": {rule: "WaiterWakes", says: "who has a deadline", change: alone(func(m *lockerMutant, b backend.Backend) {
		behind(m, b, func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			if _, timed := ctx.Deadline(); timed {
				return pollsSlowly(m, ctx, key, opts)
			}
			return m.Client.Acquire(ctx, key, opts...)
		})
	})},
	"an owner who waits beside others of its Locker hears nothing": {rule: "WaiterWakes", says: "of an owner, beside one of the same Locker without", change: alone(func(m *lockerMutant, b backend.Backend) {
		var mu sync.Mutex
		plain := map[string]int{}
		behind(m, b, func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			mu.Lock()
			others := plain[key]
			if with(opts).Owner == "" {
				plain[key]++
				defer func() {
					mu.Lock()
					defer mu.Unlock()
					if plain[key]--; plain[key] == 0 {
						delete(plain, key)
					}
				}()
			}
			mu.Unlock()
			if with(opts).Owner != "" && others > 0 {
				return pollsSlowly(m, ctx, key, opts)
			}
			return m.Client.Acquire(ctx, key, opts...)
		})
	})},
	"64 callers of a Locker wait at a time": {rule: "ManyWaiters", says: "other keys through the same Locker", change: alone(func(m *lockerMutant, b backend.Backend) {
		waits := make(chan struct{}, 64)
		behind(m, b, func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			select {
			case waits <- struct{}{}:
				defer func() { <-waits }()
			case <-ctx.Done():
				return nil, heldNow(m, ctx, key, opts)
			}
			return m.Client.Acquire(ctx, key, opts...)
		})
	})},
	"those with a deadline go first": {rule: "WaiterOrderLocal", says: "were served in the order", change: alone(func(m *lockerMutant, _ backend.Backend) {
		inTurn(m, func(callers []*caller) *caller {
			for _, c := range callers {
				if _, timed := c.ctx.Deadline(); timed {
					return c
				}
			}
			return callers[0]
		})
	})},
	"after a loss the last caller goes first": {rule: "WaiterOrderLocal", says: "behind a lease that ran out", change: func() func(*lockerMutant, backend.Backend) {
		var lost sync.Map // keys whose last hold was not released
		return func(m *lockerMutant, _ backend.Backend) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				lost.Delete(l.Key())
				context.AfterFunc(l.Lease.Context(), func() {
					if errors.Is(context.Cause(l.Lease.Context()), lock.ErrLost) {
						lost.Store(l.Lease.Key(), true)
					}
				})
			}
			inTurn(m, func(callers []*caller) *caller {
				if _, ok := lost.Load(callers[0].key); ok {
					return callers[len(callers)-1]
				}
				return callers[0]
			})
		}
	}},
	"who waits behind its own Locker's lease waits for its release": {rule: "ContextEndsFirst", says: "beside a waiter of its own Locker", change: alone(func(m *lockerMutant, b backend.Backend) {
		var leases sync.Map
		m.lease = func(_ context.Context, l *leaseMutant) {
			if l.set.Owner != "" {
				return
			}
			leases.Store(l.Lease.Key(), l)
			l.release = func(ctx context.Context) error {
				defer leases.CompareAndDelete(l.Lease.Key(), l)
				return l.Lease.Release(ctx)
			}
			context.AfterFunc(l.Lease.Context(), func() {
				if cause := context.Cause(l.Lease.Context()); errors.Is(cause, lock.ErrExpired) || errors.Is(cause, lock.ErrReleased) {
					leases.CompareAndDelete(l.Lease.Key(), l)
				}
			})
		}
		behind(m, b, func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			for {
				if _, ok := leases.Load(key); !ok || with(opts).Owner != "" {
					return m.Client.Acquire(ctx, key, opts...)
				}
				select {
				case <-ctx.Done():
					return nil, heldNow(m, ctx, key, opts)
				case <-time.After(5 * time.Millisecond):
				}
			}
		})
	})},
	"the end of an owner's inner hold wakes nobody": {rule: "WaiterWakes", says: "when an owner's inner hold was the last", change: func() func(*lockerMutant, backend.Backend) {
		type of struct {
			first *leaseMutant
			n     int
		}
		var mu sync.Mutex
		holds, silent := map[string]*of{}, map[string]time.Time{}
		return func(m *lockerMutant, b backend.Backend) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				if l.set.Owner == "" {
					return
				}
				key := l.Lease.Key()
				mu.Lock()
				if holds[key] == nil {
					holds[key] = &of{first: l}
				}
				h := holds[key]
				h.n++
				mu.Unlock()
				left := sync.OnceFunc(func() {
					mu.Lock()
					defer mu.Unlock()
					if h.n--; h.n == 0 && holds[key] == h {
						delete(holds, key)
						if l != h.first {
							silent[key] = time.Now().Add(3 * time.Second)
						}
					}
				})
				l.release = func(ctx context.Context) error {
					left()
					return l.Lease.Release(ctx)
				}
				context.AfterFunc(l.Lease.Context(), left)
			}
			behind(m, b, func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				mu.Lock()
				many := holds[key] != nil && holds[key].n > 1
				mu.Unlock()
				if !many {
					return m.Client.Acquire(ctx, key, opts...)
				}
				for {
					mu.Lock()
					later := silent[key]
					mu.Unlock()
					if time.Now().After(later) {
						if l, err := m.Client.TryAcquire(ctx, key, opts...); !errors.Is(err, lock.ErrHeld) {
							return l, err
						}
					}
					select {
					case <-ctx.Done():
						return nil, heldNow(m, ctx, key, opts)
					case <-time.After(25 * time.Millisecond):
					}
				}
			})
		}
	}},
	"an owner's wait asks all the time": {rule: "WaitIsCalm", says: "waiting with an owner", change: alone(func(m *lockerMutant, b backend.Backend) {
		behind(m, b, func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			if with(opts).Owner != "" {
				return asksEvery(m, time.Millisecond)(ctx, key, opts...)
			}
			return m.Client.Acquire(ctx, key, opts...)
		})
	})},
	"a wait with a deadline asks all the time": {rule: "WaitIsCalm", says: "waiting with a deadline", change: alone(func(m *lockerMutant, b backend.Backend) {
		behind(m, b, func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			if _, timed := ctx.Deadline(); timed {
				return asksEvery(m, time.Millisecond)(ctx, key, opts...)
			}
			return m.Client.Acquire(ctx, key, opts...)
		})
	})},
	"an owner relies on signals": {rule: "WaiterPolls", says: "was lost on its way to a waiter with an owner", change: alone(func(m *lockerMutant, b backend.Backend) {
		behind(m, b, func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			w, ok := backend.As[backend.Watcher](b)
			if !ok || with(opts).Owner == "" {
				return m.Client.Acquire(ctx, key, opts...)
			}
			watching, stop := context.WithCancel(ctx)
			defer stop()
			hints, err := w.Watch(watching, key)
			if err != nil {
				return m.Client.Acquire(ctx, key, opts...)
			}
			for {
				l, err := m.Client.TryAcquire(ctx, key, opts...)
				if !errors.Is(err, lock.ErrHeld) {
					return l, err
				}
				select {
				case <-ctx.Done():
					return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
				case <-hints:
				}
			}
		})
	})},
	"a waiter whose Locker is closed takes the signal along": {rule: "WaiterWakes", says: "when another waiter's Locker was closed", change: func() func(*lockerMutant, backend.Backend) {
		var mu sync.Mutex
		waiting := map[string]map[*lockerMutant]int{}
		told := map[string]chan struct{}{}
		return func(m *lockerMutant, b backend.Backend) {
			m.close = func() error {
				mu.Lock()
				for key, of := range waiting {
					if of[m] > 0 && told[key] != nil {
						close(told[key])
						delete(told, key)
					}
				}
				mu.Unlock()
				time.Sleep(time.Millisecond) // all of them have heard it before others hear of the Close
				return m.Client.Close()
			}
			behind(m, b, func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				mu.Lock()
				if waiting[key] == nil {
					waiting[key] = map[*lockerMutant]int{}
				}
				if told[key] == nil {
					told[key] = make(chan struct{})
				}
				closed := told[key]
				waiting[key][m]++
				mu.Unlock()
				defer func() {
					mu.Lock()
					defer mu.Unlock()
					if waiting[key][m]--; waiting[key][m] == 0 {
						delete(waiting[key], m)
					}
					if len(waiting[key]) == 0 {
						delete(waiting, key)
						delete(told, key)
					}
				}()
				inner, cancel := context.WithCancel(ctx)
				defer cancel()
				go func() {
					select {
					case <-closed:
						cancel()
					case <-inner.Done():
					}
				}()
				l, err := m.Client.Acquire(inner, key, opts...)
				if err != nil && inner.Err() != nil && ctx.Err() == nil && !errors.Is(err, lock.ErrClosed) {
					return pollsSlowly(m, ctx, key, opts)
				}
				return l, err
			})
		}
	}},
	"the Close of an owner's Locker wakes nobody": {rule: "WakesAtAnyMoment", says: "an owner's hold, freed by Close", change: deaf(func(holds, _ lock.Settings, closed bool) bool { return closed && holds.Owner != "" })},
	"an owner's maximum hold wakes nobody":        {rule: "WakesAtAnyMoment", says: "a maximum hold", change: deaf(func(holds, _ lock.Settings, _ bool) bool { return holds.MaxHold > 0 && holds.Owner != "" })},
	"an owner behind an owner is not woken":       {rule: "WakesAtAnyMoment", says: "of an owner, behind another", change: deaf(func(holds, waits lock.Settings, _ bool) bool { return holds.Owner != "" && waits.Owner != "" })},
	"a wait ends when the server goes away":       {rule: "ProgressUnderFaults", says: "expected it to go on", change: alone(func(m *lockerMutant, b backend.Backend) { behind(m, b, asksEvery(m, 50*time.Millisecond)) })},
	"a wait needs its watch": {rule: "ProgressUnderFaults", says: "expected it to go on", change: alone(func(m *lockerMutant, b backend.Backend) {
		behind(m, b, func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			if w, ok := backend.As[backend.Watcher](b); ok {
				watching, stop := context.WithCancel(ctx)
				defer stop()
				for range 8 { // which of them meets a fault is chance
					if _, err := w.Watch(watching, key); err != nil && ctx.Err() == nil {
						return nil, err
					}
				}
			}
			return m.Client.Acquire(ctx, key, opts...)
		})
	})},
	"an owner's try is refused while others of its Locker wait": {rule: "ReentrantOverWaiters", says: "", change: alone(func(m *lockerMutant, b backend.Backend) {
		var mu sync.Mutex
		waits := map[string]int{}
		behind(m, b, func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			mu.Lock()
			waits[key]++
			mu.Unlock()
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				if waits[key]--; waits[key] == 0 {
					delete(waits, key)
				}
			}()
			return m.Client.Acquire(ctx, key, opts...)
		})
		m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			mu.Lock()
			n := waits[key]
			mu.Unlock()
			if n > 0 && with(opts).Owner != "" {
				return nil, &lock.HeldError{Key: key}
			}
			return m.Client.TryAcquire(ctx, key, opts...)
		}
	})},
	"the loss of an owner's lease that was cut off is told late": {rule: "LostWhenCutOff", says: "with an owner", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			if l.set.Owner != "" && !l.set.NoRenewal {
				ctx, cancel := context.WithCancelCause(context.Background())
				l.ctx = ctx
				inner := l.Lease.Context()
				context.AfterFunc(inner, func() {
					if errors.Is(context.Cause(inner), lock.ErrExpired) {
						time.Sleep(300 * time.Millisecond)
					}
					cancel(context.Cause(inner))
				})
				l.release = func(ctx context.Context) error {
					err := l.Lease.Release(ctx)
					cancel(context.Cause(inner))
					return err
				}
			}
		}
	})},
	"the loss of an owner's lease that was cut off is told as a takeover": {rule: "LostWhenCutOff", says: "it must not match ErrTakenOver", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			if l.set.Owner != "" && !l.set.NoRenewal {
				l.tells(instead(lock.ErrExpired, lock.ErrTakenOver))
			}
		}
	})},
	"a lease whose release has failed is renewed on": {rule: "ReleaseUnknown", says: "expected its renewal to stop", change: alone(func(m *lockerMutant, b backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			held, err := lock.HeldOn[backend.Backend](l.Lease)
			if err != nil || l.set.NoRenewal {
				return
			}
			l.release = func(ctx context.Context) error {
				err := l.Lease.Release(ctx)
				if errors.Is(err, lock.ErrOutcomeUnknown) || errors.Is(err, lock.ErrUnavailable) {
					go func() {
						for range 50 {
							time.Sleep(l.set.TTL / 5)
							if _, err := b.Renew(context.Background(), held.Hold); errors.Is(err, lock.ErrNotHeld) {
								return
							}
						}
					}()
				}
				return err
			}
		}
	})},
	"a lease whose release has failed lives on": {rule: "ReleaseUnknown", says: "was alive after a Release", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			ctx, end := context.WithCancelCause(context.Background())
			inner := l.Lease.Context()
			var releasing, failed atomic.Bool
			l.now = func() context.Context {
				if inner.Err() != nil && !failed.Load() {
					end(context.Cause(inner))
				}
				return ctx
			}
			context.AfterFunc(inner, func() {
				if !releasing.Load() {
					end(context.Cause(inner))
				}
			})
			l.release = func(rctx context.Context) error {
				if inner.Err() == nil {
					releasing.Store(true)
				}
				err := l.Lease.Release(rctx)
				failed.Store(errors.Is(err, lock.ErrOutcomeUnknown))
				if !failed.Load() {
					end(context.Cause(inner))
				}
				return err
			}
		}
	})},
	"what an owner's cancelled call may have got is not given back": {rule: "ReentrantFault", says: "still refused", around: func() around {
		return func(b backend.Backend) backend.Backend { return keepsOwnersLate{wrapper{b}} }
	}},
	"an owner who comes after Close is cancelled": {rule: "CloseEndsWaits", says: "on a closed Locker, for a lease with an owner", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.both(func(get engine.Getter) engine.Getter {
			return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				begun := time.Now()
				l, err := get(ctx, key, opts...)
				if errors.Is(err, lock.ErrClosed) && with(opts).Owner != "" && time.Since(begun) == 0 {
					err = context.Canceled
				}
				return l, err
			}
		})
	})},
	"who waits for a server that is away is not told of Close": {rule: "CloseEndsWaits", says: "whose server could not be reached", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			var away error
			if free, err := m.Client.TryAcquire(ctx, key, opts...); err == nil {
				return free, nil
			} else if away = err; ctx.Err() != nil {
				return nil, err
			}
			l, err := m.Client.Acquire(ctx, key, opts...)
			if errors.Is(err, lock.ErrClosed) && errors.Is(away, lock.ErrUnavailable) {
				err = away
			}
			return l, err
		}
	})},
	"the deadline of a renewal by hand counts from its answer": {rule: "DeadlineFromSend", says: "the answer to a Renew came", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			var mu sync.Mutex
			var late, of time.Time
			l.renew = func(ctx context.Context) error {
				err := l.Lease.Renew(ctx)
				if d, ok := l.Lease.Deadline(); err == nil && ok {
					mu.Lock()
					late, of = time.Now().Add(backend.ValidFor(l.set.TTL)), d
					mu.Unlock()
				}
				return err
			}
			l.deadline = func() (time.Time, bool) {
				mu.Lock()
				defer mu.Unlock()
				d, ok := l.Lease.Deadline()
				if ok && d.Equal(of) {
					return late, true
				}
				return d, ok
			}
		}
	})},
	"a renewal by hand that could not be sent is a loss": {rule: "RenewTransient", says: "with renewals refused", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			l.renew = func(ctx context.Context) error {
				err := l.Lease.Renew(ctx)
				if errors.Is(err, lock.ErrUnavailable) {
					err = fmt.Errorf("%w: %w", lock.ErrNotHeld, err)
				}
				return err
			}
		}
	})},
	"an owner's try without an answer is a refusal": {rule: "ReentrantFault", says: "expected a lease or ErrOutcomeUnknown", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, err := m.Client.TryAcquire(ctx, key, opts...)
			if with(opts).Owner != "" && ctx.Err() == nil && errors.Is(err, lock.ErrOutcomeUnknown) {
				err = &lock.HeldError{Key: key}
			}
			return l, err
		}
	})},
	"an owner's release without an answer was well": {rule: "ReleaseUnknown", says: "no request of it has reached the server", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			if l.set.Owner != "" {
				l.release = func(ctx context.Context) error {
					if err := l.Lease.Release(ctx); !errors.Is(err, lock.ErrOutcomeUnknown) {
						return err
					}
					return nil
				}
			}
		}
	})},
	"the release of an owner's hold is not repeated": {rule: "ReentrantFault", says: "still refused", around: func() around {
		var sent sync.Map
		return func(b backend.Backend) backend.Backend { return releasesOwnersOnce{wrapper{b}, &sent} }
	}},
	"an owner waits for what will not come": {rule: "PermanentStops", says: "Acquire with an owner", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			for {
				l, err := m.Client.Acquire(ctx, key, opts...)
				if with(opts).Owner == "" || !errors.Is(err, lock.ErrPermanent) || ctx.Err() != nil {
					return l, err
				}
				time.Sleep(30 * time.Millisecond)
			}
		}
	})},
	"keeps the keys that it got after a wait": {rule: "NothingKept", says: "waits that got the key", change: alone(func(m *lockerMutant, _ backend.Backend) {
		keepsOf(m, func(_ context.Context, key string, l lock.Lease, err error, waited bool) (any, bool) {
			return key, err == nil && waited
		})
	})},
	"keeps the keys of calls that were not acceptable": {rule: "NothingKept", says: "calls that were not acceptable", change: alone(func(m *lockerMutant, _ backend.Backend) {
		keepsOf(m, func(_ context.Context, key string, _ lock.Lease, err error, _ bool) (any, bool) {
			return key, errors.Is(err, lock.ErrInvalid)
		})
	})},
	"keeps the contexts that had ended": {rule: "NothingKept", says: "calls whose contexts had ended", change: alone(func(m *lockerMutant, _ backend.Backend) {
		keepsOf(m, func(ctx context.Context, _ string, _ lock.Lease, err error, waited bool) (any, bool) {
			return ctx, ctx.Err() != nil && !waited
		})
	})},
	"keeps the contexts of second releases": {rule: "NothingKept", says: "second releases", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var mu sync.Mutex
		var kept []context.Context
		m.lease = func(_ context.Context, l *leaseMutant) {
			l.release = func(ctx context.Context) error {
				err := l.Lease.Release(ctx)
				if errors.Is(err, lock.ErrNotHeld) && !errors.Is(err, lock.ErrLost) {
					mu.Lock()
					defer mu.Unlock()
					kept = append(kept, ctx)
				}
				return err
			}
		}
	})},
	"keeps the keys of leases that ran out": {rule: "NothingKept", says: "leases that have run out", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var mu sync.Mutex
		var kept []string
		m.lease = func(_ context.Context, l *leaseMutant) {
			context.AfterFunc(l.Lease.Context(), func() {
				if errors.Is(context.Cause(l.Lease.Context()), lock.ErrExpired) {
					mu.Lock()
					defer mu.Unlock()
					kept = append(kept, l.Lease.Key())
				}
			})
		}
	})},
	"keeps the owners whose waits were given up": {rule: "NothingKept", says: "waits of owners that were given up", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var mu sync.Mutex
		var kept []string
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, err := m.Client.Acquire(ctx, key, opts...)
			if owner := with(opts).Owner; owner != "" && ctx.Err() != nil {
				mu.Lock()
				defer mu.Unlock()
				kept = append(kept, owner)
			}
			return l, err
		}
	})},
	"keeps the labels of leases": {rule: "NothingKept", says: "leases with labels", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var labels sync.Map
		m.lease = func(_ context.Context, l *leaseMutant) {
			if l.set.Label != "" {
				labels.Store(l.set.Label, true)
			}
		}
	})},
	"who waits behind another one has the TTL of that one": {rule: "OptionsOfOneCall", says: "were those of a caller who waited before it", change: alone(func(m *lockerMutant, _ backend.Backend) {
		ahead(m, func(n int, first lock.Settings, ctx context.Context, key string, opts []lock.Option) (lock.Lease, error) {
			if n > 0 && first.TTL > 0 {
				opts = rewritten(opts, func(s *lock.Settings) { s.TTL = first.TTL })
			}
			return m.Client.Acquire(ctx, key, opts...)
		})
	})},
	"the label of a wait that was given up goes to the next wait for the key": {rule: "OptionsOfOneCall", says: "which was the label of an earlier call that got nothing", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var left sync.Map
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, err := m.Client.Acquire(ctx, key, rewritten(opts, func(s *lock.Settings) {
				if was, ok := left.LoadAndDelete(key); ok && s.Label == "" {
					s.Label = was.(string)
				}
			})...)
			if set := with(opts); err != nil && ctx.Err() != nil && set.Label != "" {
				left.Store(key, set.Label)
			}
			return l, err
		}
	})},
	"the maximum of a try that was refused goes to the next try": {rule: "OptionsOfOneCall", says: "were those of an earlier call that got nothing", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var left sync.Map
		m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, err := m.Client.TryAcquire(ctx, key, rewritten(opts, func(s *lock.Settings) {
				if was, ok := left.LoadAndDelete(key); ok && s.MaxHold == 0 {
					s.MaxHold = was.(time.Duration)
				}
			})...)
			if set := with(opts); errors.Is(err, lock.ErrHeld) && set.MaxHold > 0 {
				left.Store(key, set.MaxHold)
			}
			return l, err
		}
	})},
	"a release beside another one is well at once": {rule: "CallsAreBounded", says: "Release beside another one that hangs", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			var under atomic.Bool
			l.release = func(ctx context.Context) error {
				if under.Swap(true) && l.Lease.Context().Err() != nil {
					return nil
				}
				defer under.Store(false)
				return l.Lease.Release(ctx)
			}
		}
	})},
	"an owner's Acquire waits behind those of other owners": {rule: "ReentrantOverWaiters", says: "by the owner of the key had not returned", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var mu sync.Mutex
		waits := map[string][]string{}
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			me := with(opts).Owner
			if me == "" {
				return m.Client.Acquire(ctx, key, opts...)
			}
			others := func() bool {
				mu.Lock()
				defer mu.Unlock()
				return slices.ContainsFunc(waits[key], func(o string) bool { return o != me })
			}
			for others() && ctx.Err() == nil {
				time.Sleep(5 * time.Millisecond)
			}
			mu.Lock()
			waits[key] = append(waits[key], me)
			mu.Unlock()
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				i := slices.Index(waits[key], me)
				waits[key] = slices.Delete(waits[key], i, i+1)
			}()
			return m.Client.Acquire(ctx, key, opts...)
		}
	})},
	"who came while the server was away is not told that the key is held": {rule: "UnavailableIsTold", says: "began while the server was away", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, first := m.Client.TryAcquire(ctx, key, opts...)
			if first == nil || !errors.Is(first, lock.ErrUnavailable) {
				if first == nil {
					_ = l.Release(ctx)
				}
				return m.Client.Acquire(ctx, key, opts...)
			}
			l, err := m.Client.Acquire(ctx, key, opts...)
			if errors.Is(err, lock.ErrHeld) && ctx.Err() != nil {
				err = ctx.Err()
			}
			return l, err
		}
	})},
	"who was refused before the server was away is told of the holder only": {rule: "UnavailableIsTold", says: "expected an error that matches ErrUnavailable too", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, err := m.Client.Acquire(ctx, key, opts...)
			if held := (*lock.HeldError)(nil); errors.As(err, &held) && ctx.Err() != nil {
				err = fmt.Errorf("%w: %w", ctx.Err(), held)
			}
			return l, err
		}
	})},
	"renewals by hand of a lease end with the context of the first": {rule: "CancelHarmsNobody", says: "an earlier Renew of the lease", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			var shared sharedCalls
			l.renew = func(ctx context.Context) error {
				return shared.join(ctx, func() error { return l.Lease.Renew(ctx) })
			}
		}
	})},
	"tries of a key share the error of the first": {rule: "CancelHarmsNobody", says: "an earlier call for the key", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var keys sync.Map
		m.try = func(ctx context.Context, key string, opts ...lock.Option) (l lock.Lease, err error) {
			shared, _ := keys.LoadOrStore(key, new(sharedCalls))
			err = shared.(*sharedCalls).join(ctx, func() error {
				l, err = m.Client.TryAcquire(ctx, key, opts...)
				return err
			})
			if err == nil && l == nil {
				return m.Client.TryAcquire(ctx, key, opts...)
			}
			return l, err
		}
	})},
	"who gives up is told of a cancellation, whatever its context says": {rule: "WaiterGivesUp", says: "whose context has an error of its own", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, err := m.Client.Acquire(ctx, key, opts...)
			if errors.Is(err, lock.ErrHeld) && errors.Is(ctx.Err(), context.Canceled) {
				err = fmt.Errorf("%w: %w", context.Canceled, lock.ErrHeld)
			}
			return l, err
		}
	})},
	"who has hardly any time is told that the key is held": {rule: "HandsOut", says: "nobody has said so", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			if at, timed := ctx.Deadline(); timed && time.Until(at) < 10*time.Millisecond {
				<-ctx.Done()
				return nil, fmt.Errorf("%w: %w", ctx.Err(), lock.ErrHeld)
			}
			return m.Client.Acquire(ctx, key, opts...)
		}
	})},
	"after a permanent refusal the key is refused for good": {rule: "PermanentStops", says: "because the server refuses no more", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var bad sync.Map
		m.both(func(get engine.Getter) engine.Getter {
			return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				if err, was := bad.Load(key); was {
					return nil, err.(error)
				}
				l, err := get(ctx, key, opts...)
				if errors.Is(err, lock.ErrPermanent) {
					bad.Store(key, err)
				}
				return l, err
			}
		})
	})},
	"a release waits for the renewal by hand under way": {rule: "CallsAreBounded", says: "Release beside a Renew that hangs", change: alone(func(m *lockerMutant, _ backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			turn := turnOfRenewals(l)
			l.release = func(ctx context.Context) error {
				defer turn()()
				return l.Lease.Release(ctx)
			}
		}
	})},
	"a try for a key whose wait was given up waits": {rule: "TryIsImmediate", says: "after a wait for the key that was given up", change: alone(func(m *lockerMutant, _ backend.Backend) {
		var left sync.Map
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, err := m.Client.Acquire(ctx, key, opts...)
			if err != nil && ctx.Err() != nil {
				left.Store(key, true)
			}
			return l, err
		}
		m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			if _, was := left.Load(key); was && ctx.Err() == nil {
				short, stop := context.WithTimeout(ctx, 200*time.Millisecond)
				defer stop()
				if l, err := m.Client.Acquire(short, key, opts...); err == nil || short.Err() == nil {
					return l, err
				}
			}
			return m.Client.TryAcquire(ctx, key, opts...)
		}
	})},
}

// keepsOwnersLate sends no release for what may have been granted to an owner.
type keepsOwnersLate struct{ wrapper }

func (b keepsOwnersLate) Release(ctx context.Context, h backend.Hold) error {
	if h.Owner != "" && h.Token == 0 {
		return nil
	}
	return b.Backend.Release(ctx, h)
}

type releasesOwnersOnce struct {
	wrapper
	sent *sync.Map
}

func (b releasesOwnersOnce) Release(ctx context.Context, h backend.Hold) error {
	if _, again := b.sent.LoadOrStore(h.ID, true); again && h.Owner != "" {
		return backend.ErrNotHeld
	}
	return b.Backend.Release(ctx, h)
}

// lineOfAll is a line of all Lockers for each key. Who gives a key back leaves the line free for
// a moment, and then tells the first who waits.
type lineOfAll struct {
	mu    sync.Mutex
	taken map[string]bool
	lines map[string][]chan struct{}
}

// enter returns when it is the caller's turn.
func (a *lineOfAll) enter(ctx context.Context, key string) error {
	a.mu.Lock()
	if !a.taken[key] {
		a.taken[key] = true
		a.mu.Unlock()
		return nil
	}
	me := make(chan struct{})
	a.lines[key] = append(a.lines[key], me)
	a.mu.Unlock()
	select {
	case <-me:
		return nil
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.Index(a.lines[key], me)
	if i < 0 {
		return nil // it was told at this moment
	}
	a.lines[key] = slices.Delete(a.lines[key], i, i+1)
	return ctx.Err()
}

func (a *lineOfAll) leave(key string) {
	a.mu.Lock()
	a.taken[key] = false
	a.mu.Unlock()
	time.Sleep(time.Millisecond)
	a.mu.Lock()
	defer a.mu.Unlock()
	if line := a.lines[key]; len(line) > 0 && !a.taken[key] {
		a.taken[key] = true
		a.lines[key] = line[1:]
		close(line[0])
	}
}

// A release of two steps lets newcomers in before those who wait.
func TestMutantThatLetsNewcomersIn(t *testing.T) {
	t.Parallel()
	a := &lineOfAll{taken: map[string]bool{}, lines: map[string][]chan struct{}{}}
	store := memlock.NewStore(nil)
	mustSay(t, conformance.Config{Open: func(ctx context.Context) (lock.Locker, error) {
		c, err := memlock.New(ctx, &memlock.Options{Store: store, Queue: true})
		if err != nil {
			return nil, err
		}
		m := &lockerMutant{Client: c, close: c.Close}
		m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, err := c.TryAcquire(ctx, key, opts...)
			if err == nil {
				a.mu.Lock()
				a.taken[key] = true
				a.mu.Unlock()
			}
			return l, err
		}
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			if err := a.enter(ctx, key); err != nil {
				return nil, err
			}
			l, err := c.Acquire(ctx, key, opts...)
			if err != nil {
				a.leave(key)
			}
			return l, err
		}
		m.lease = func(_ context.Context, l *leaseMutant) {
			l.release = func(ctx context.Context) error {
				defer a.leave(l.Key())
				return l.Lease.Release(ctx)
			}
		}
		return m, nil
	}}, "FairOrder", "newcomers at the release")
}

// Mutants that are wrong where waits, losses or faults meet an option, another caller or
// another end of the hold.
func TestMutantsOfWaits(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for name, c := range waitMutants {
		atOnce(t, &all, name, func(t *testing.T) { mustSay(t, c.config(), c.rule, c.says) })
	}
	all.Wait()
}
