package rules_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/internal/engine"
	memlock "github.com/mortiselock/lock/memory"
)

// Healthy locks that are built in another way than most are not accused.
func TestUnusualLocks(t *testing.T) {
	t.Parallel()
	polls := map[string]string{"WaiterOrderLocal": "its waiters ask, each for itself"}
	asks := func(g backend.Guarantees) backend.Guarantees { g.Waiting, g.Fair = backend.WaitPoll, false; return g }
	var all sync.WaitGroup
	for name, cfg := range map[string]func() conformance.Config{
		"a server whose clock counts seconds": func() conformance.Config {
			return overPlain(0, func(p *plainBackend) {
				p.grain = time.Second
				p.says = func(g *backend.Guarantees) {
					g.TTLGrain, g.MinTTL, g.TakeoverLag = time.Second, 2*time.Second, 2*time.Second
				}
			})
		},
		"a server far away, which takes a second now and then": func() conformance.Config {
			cfg := overPlain(0, func(p *plainBackend) { p.way = jitter(15*time.Millisecond, 150*time.Millisecond, 500*time.Millisecond) })
			cfg.Budget = time.Minute
			return cfg
		},
		"a server that is away for a second": func() conformance.Config {
			begun := sync.OnceValue(time.Now)
			return overPlain(time.Second, func(p *plainBackend) {
				p.away = func() error {
					if at := time.Since(begun()); at > 5*time.Second && at < 6*time.Second {
						return fmt.Errorf("%w: connection refused", backend.ErrUnavailable)
					}
					return nil
				}
			})
		},
		"a release that the server carries out later": func() conformance.Config {
			return overPlain(300*time.Millisecond, func(p *plainBackend) { p.later = 100 * time.Millisecond })
		},
		"a server with a grace of half a second": func() conformance.Config {
			return overPlain(300*time.Millisecond, func(p *plainBackend) {
				p.grace = 500 * time.Millisecond
				p.says = func(g *backend.Guarantees) { g.TakeoverLag = 500 * time.Millisecond }
			})
		},
		"one that declines to hand over, and does not know who watches": func() conformance.Config {
			store := memlock.NewStore(nil)
			return conformance.Config{Budget: 5 * time.Second, OpenBackend: func(ctx context.Context) (backend.Backend, error) {
				b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store})
				return handsNothing{b}, err
			}}
		},
		"a holder that counts on two thirds of its TTL": func() conformance.Config {
			return overPlain(time.Second, func(p *plainBackend) {
				p.counts = func(ttl time.Duration) time.Duration { return ttl - 300*time.Millisecond }
				p.says = func(g *backend.Guarantees) { g.MinTTL = time.Second }
			})
		},
		"a holder that counts on little more than half of its TTL": func() conformance.Config {
			return overPlain(time.Second, func(p *plainBackend) {
				p.counts = func(ttl time.Duration) time.Duration { return ttl * 11 / 20 }
			})
		},
		"what is left is shown in whole seconds": func() conformance.Config {
			return overPlain(time.Second, func(p *plainBackend) {
				p.shows = func(left time.Duration) time.Duration {
					return (left + time.Second - 1).Truncate(time.Second)
				}
			})
		},
		"limits of the TTL beside the grain": func() conformance.Config {
			return overPlain(6*time.Second, func(p *plainBackend) {
				p.says = func(g *backend.Guarantees) {
					g.MinTTL, g.MaxTTL, g.TTLGrain = 5*time.Second, 8*time.Second, 3*time.Second
				}
			})
		},
		"no maximum holds": func() conformance.Config {
			return refuses(func(s lock.Settings) bool { return s.MaxHold != 0 })
		},
		"no maximum holds of leases that are not renewed": func() conformance.Config {
			return refuses(func(s lock.Settings) bool { return s.MaxHold != 0 && s.NoRenewal })
		},
		"no deadline, but a loss signal": func() conformance.Config {
			return byOpen(func(m *lockerMutant) {
				m.says = func(g backend.Guarantees) backend.Guarantees { g.Deadline = false; return g }
				m.lease = func(_ context.Context, l *leaseMutant) {
					l.deadline = func() (time.Time, bool) { return time.Time{}, false }
				}
			})
		},
		"renewals that take more than a quarter of the TTL": func() conformance.Config {
			return overPlain(3*time.Second, func(p *plainBackend) {
				p.renews = func() error { time.Sleep(800 * time.Millisecond); return nil }
				p.ownerless, p.says = true, func(g *backend.Guarantees) { g.Reentrancy = backend.ReentrancyClient }
			})
		},
		"a smallest TTL of 5 s": func() conformance.Config {
			return overPlain(0, func(p *plainBackend) { p.says = func(g *backend.Guarantees) { g.MinTTL = 5 * time.Second } })
		},
		"tokens with gaps": func() conformance.Config {
			return byOpen(func(m *lockerMutant) {
				m.lease = func(_ context.Context, l *leaseMutant) { l.token = func() uint64 { return gapped(l.Lease.Token()) } }
			})
		},
		"waiters that ask every half a second": func() conformance.Config {
			cfg := byOpen(func(m *lockerMutant) { m.acquire, m.says = asksAbout(m, 500*time.Millisecond), asks })
			cfg.Deviations = polls
			return cfg
		},
		"waits that end after five seconds, and not with their contexts": func() conformance.Config {
			cfg := wrapped(func(m *lockerMutant, _ backend.Backend) {
				m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					if ctx.Err() != nil {
						return nil, ctx.Err()
					}
					ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
					defer cancel()
					return m.Client.Acquire(ctx, key, opts...)
				}
			})
			cfg.Deviations = map[string]string{"waiting": "a wait lasts for five seconds at most, whatever its context says"}
			return cfg
		},
		"requests that may arrive late, always": func() conformance.Config {
			return overPlain(time.Second, func(p *plainBackend) { p.mayArrive = true })
		},
		"a server that cannot renew": func() conformance.Config {
			cfg := overPlain(time.Second, func(p *plainBackend) {
				p.renews = func() error { return backend.ErrUnsupported }
				p.says = func(g *backend.Guarantees) { g.ManualRenewal = false }
			})
			cfg.Deviations = map[string]string{"renewal": "the server cannot renew"}
			return cfg
		},
		"signals that come late": func() conformance.Config {
			return overStrange(func(s *strange) { s.signals = later(100 * time.Millisecond) })
		},
		"watches that end at once": func() conformance.Config {
			return overStrange(func(s *strange) { s.signals = ended })
		},
		"looks and watches that take a while": func() conformance.Config {
			return overStrange(func(s *strange) { s.looks = 400 * time.Millisecond })
		},
		"neither owners, labels nor maximum holds": func() conformance.Config {
			return byOpen(func(m *lockerMutant) {
				m.both(func(get engine.Getter) engine.Getter { return plainly(get) })
				m.says = func(g backend.Guarantees) backend.Guarantees {
					g.Reentrancy, g.HolderDetails = backend.ReentrancyNone, false
					return g
				}
			})
		},
		"neither deadline, token nor loss signal": func() conformance.Config {
			return byOpen(func(m *lockerMutant) {
				m.says = func(g backend.Guarantees) backend.Guarantees {
					g.Deadline, g.LossSignal, g.HolderDetails, g.Token, g.TokenSurvives = false, false, false, backend.TokenNone, nil
					return g
				}
				m.lease = func(_ context.Context, l *leaseMutant) {
					l.deadline = func() (time.Time, bool) { return time.Time{}, false }
					l.token = func() uint64 { return 0 }
				}
			})
		},
	} {
		atOnce(t, &all, name, func(t *testing.T) { mustFail(t, cfg(), "") })
	}
	all.Wait()
}

// refuses is a Locker that does not have some settings.
func refuses(lacks func(s lock.Settings) bool) conformance.Config {
	return byOpen(func(m *lockerMutant) {
		m.both(func(get engine.Getter) engine.Getter {
			return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				if s, err := lock.ResolveOptions(opts...); err == nil && lacks(s) {
					return nil, fmt.Errorf("%w: these settings", lock.ErrUnsupported)
				}
				return get(ctx, key, opts...)
			}
		})
	})
}

// byOpen is a finished Locker that is changed.
func byOpen(change func(m *lockerMutant)) conformance.Config {
	store := memlock.NewStore(nil)
	const ttl = 300 * time.Millisecond
	return conformance.Config{
		TTL: ttl, Budget: 5 * time.Second,
		Open: func(ctx context.Context) (lock.Locker, error) {
			l, err := memlock.New(ctx, &memlock.Options{Store: store, Lock: lock.Options{TTL: ttl}})
			if err != nil {
				return nil, err
			}
			m := &lockerMutant{Client: l, try: l.TryAcquire, acquire: l.Acquire, close: l.Close}
			change(m)
			return m, nil
		},
		Remove: func(_ context.Context, key string) error { store.Remove(key); return nil },
	}
}

func overPlain(ttl time.Duration, change func(p *plainBackend)) conformance.Config {
	store := memlock.NewStore(nil)
	return conformance.Config{TTL: ttl, Budget: 5 * time.Second, OpenBackend: func(ctx context.Context) (backend.Backend, error) {
		b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store})
		if err != nil {
			return nil, err
		}
		p := &plainBackend{Backend: b, way: func() time.Duration { return 0 }, says: func(*backend.Guarantees) {}, away: answers, renews: answers}
		p.counts = func(ttl time.Duration) time.Duration { return ttl }
		p.shows = p.counts
		change(p)
		return p, nil
	}}
}

// plainBackend has no abilities, and a server of another kind.
type plainBackend struct {
	backend.Backend
	says         func(g *backend.Guarantees)
	grace, grain time.Duration                          // by which the server keeps holds for longer
	counts       func(ttl time.Duration) time.Duration  // what a holder counts on
	shows        func(left time.Duration) time.Duration // what a refusal says is left
	way          func() time.Duration                   // of a request, and of its answer
	later        time.Duration                          // until the server carries out a release
	away, renews func() error                           // where it can't be reached, or renew
	mayArrive    bool                                   // what it says of each grant
	ownerless    bool                                   // the Locker counts their holds
}

func answers() error { return nil }

func (p *plainBackend) Clock() backend.Clock { return ability[backend.Clocked](p.Backend).Clock() }

func (p *plainBackend) Guarantees() backend.Guarantees {
	g := p.Backend.Guarantees()
	g.Waiting, g.Reach = backend.WaitPoll, backend.ReachNetwork
	p.says(&g)
	return g
}

func (p *plainBackend) kept(ttl time.Duration) time.Duration {
	ttl += p.grace
	if p.grain > 0 {
		ttl = time.Until(time.Now().Add(ttl + p.grain).Truncate(p.grain).Add(p.grain))
	}
	return ttl
}

func (p *plainBackend) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if err := p.away(); err != nil {
		return backend.Grant{}, err
	}
	valid := backend.Validity{Sent: p.Clock().Now(), For: backend.ValidFor(p.counts(req.TTL))}
	time.Sleep(p.way())
	req.Key, req.TTL = strings.Clone(req.Key), p.kept(req.TTL)
	if p.ownerless {
		req.Owner = ""
	}
	g, err := p.Backend.Try(ctx, req)
	time.Sleep(p.way())
	var held *backend.HeldError
	if errors.As(err, &held) {
		held.Remaining = p.shows(held.Remaining)
	}
	g.Validity, g.MayArrive = valid, p.mayArrive
	return g, err
}

func (p *plainBackend) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	if err := cmp.Or(p.away(), p.renews()); err != nil {
		return backend.Validity{}, err
	}
	valid := backend.Validity{Sent: p.Clock().Now(), For: backend.ValidFor(p.counts(h.TTL))}
	time.Sleep(p.way())
	h.Key, h.TTL = strings.Clone(h.Key), p.kept(h.TTL)
	if p.ownerless {
		h.Owner = ""
	}
	_, err := p.Backend.Renew(ctx, h)
	time.Sleep(p.way())
	return valid, err
}

func (p *plainBackend) Release(ctx context.Context, h backend.Hold) error {
	if err := p.away(); err != nil {
		return err
	}
	time.Sleep(p.way() + p.later)
	h.Key = strings.Clone(h.Key)
	if p.ownerless {
		h.Owner = ""
	}
	err := p.Backend.Release(ctx, h)
	time.Sleep(p.way())
	return err
}

func overStrange(change func(s *strange)) conformance.Config {
	cfg := memory()
	open := cfg.OpenBackend
	cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
		b, err := open(ctx)
		if err != nil {
			return nil, err
		}
		s := &strange{Backend: b}
		change(s)
		return s, nil
	}
	return cfg
}

// strange has the abilities of the memory backend, some of them in a way of its own.
type strange struct {
	backend.Backend
	signals func(ctx context.Context, hints <-chan backend.Hint) <-chan backend.Hint
	looks   time.Duration // of those who look at a key, and until a watch is in force
}

func (s *strange) Unwrap() backend.Backend { return s.Backend }

func (s *strange) Watch(ctx context.Context, key string) (<-chan backend.Hint, error) {
	time.Sleep(s.looks / 2)
	hints, err := ability[backend.Watcher](s.Backend).Watch(ctx, key)
	if err == nil && s.signals != nil {
		hints = s.signals(ctx, hints)
	}
	return hints, err
}

func (s *strange) Inspect(ctx context.Context, key string) (backend.Record, error) {
	defer time.Sleep(s.looks)
	return ability[backend.Inspector](s.Backend).Inspect(ctx, key)
}

// later has signals come so much later.
func later(late time.Duration) func(context.Context, <-chan backend.Hint) <-chan backend.Hint {
	return func(ctx context.Context, hints <-chan backend.Hint) <-chan backend.Hint {
		out := make(chan backend.Hint, 1)
		go func() {
			for {
				select {
				case hint := <-hints:
					time.Sleep(late)
					select {
					case out <- hint:
					default:
					}
				case <-ctx.Done():
					return
				}
			}
		}()
		return out
	}
}

func ended(context.Context, <-chan backend.Hint) <-chan backend.Hint {
	out := make(chan backend.Hint)
	close(out)
	return out
}

// A waiter may ask when its watch ends, and when the next one is in force.
func TestWatchesThatEndOften(t *testing.T) {
	t.Parallel()
	cfg := overStrange(func(s *strange) {
		s.signals = func(ctx context.Context, _ <-chan backend.Hint) <-chan backend.Hint {
			out := make(chan backend.Hint)
			go func() {
				defer close(out)
				select {
				case <-time.After(25 * time.Millisecond):
				case <-ctx.Done():
				}
			}()
			return out
		}
	})
	cfg.Wrap = func(b backend.Backend, ttl time.Duration) (lock.Locker, error) {
		l, err := lock.New(b, &lock.Options{TTL: ttl})
		if err != nil {
			return nil, err
		}
		m := &lockerMutant{Client: l, try: l.TryAcquire, acquire: l.Acquire, close: l.Close}
		if w, ok := backend.As[backend.Watcher](b); ok {
			m.acquire = watchesAnew(l, w)
		}
		return m, nil
	}
	mustPass(t, cfg, "WaitIsCalm")
}

// watchesAnew begins another watch as soon as one has ended, and does not ask otherwise.
func watchesAnew(l *lock.Client, w backend.Watcher) engine.Getter {
	return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
		for {
			h, err := l.TryAcquire(ctx, key, opts...)
			if !errors.Is(err, lock.ErrHeld) {
				return h, err
			}
			watching, stop := context.WithCancel(ctx)
			hints, err := w.Watch(watching, key)
			if err == nil {
				h, err = l.TryAcquire(ctx, key, opts...)
			}
			if !errors.Is(err, lock.ErrHeld) {
				stop()
				return h, err
			}
			select {
			case <-hints:
			case <-ctx.Done():
				err = errors.Join(ctx.Err(), err)
			}
			stop()
			if ctx.Err() != nil {
				return nil, err
			}
		}
	}
}

func jitter(least, most, rarely time.Duration) func() time.Duration {
	return func() time.Duration {
		if rand.IntN(100) == 0 {
			return rarely
		}
		return least + rand.N(most-least)
	}
}

func gapped(token uint64) uint64 {
	h := fnv.New32()
	fmt.Fprint(h, token)
	return token<<3 | uint64(h.Sum32()&7)
}

// asksAbout waits by asking after about that pause.
func asksAbout(m *lockerMutant, pause time.Duration) engine.Getter {
	return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
		for {
			l, err := m.Client.TryAcquire(ctx, key, opts...)
			switch {
			case err != nil && ctx.Err() != nil:
				return nil, errors.Join(lock.ErrHeld, ctx.Err())
			case !errors.Is(err, lock.ErrHeld):
				return l, err
			}
			select {
			case <-ctx.Done():
				return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
			case <-time.After(pause*3/4 + rand.N(pause/4)):
			}
		}
	}
}

// plainly refuses what is not plain.
func plainly(get engine.Getter) engine.Getter {
	return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
		if err := lock.ValidateKey(key); err != nil {
			return nil, err
		}
		switch s, err := lock.ResolveOptions(opts...); {
		case err != nil:
			return nil, err
		case s.Owner != "" || s.MaxHold != 0 || s.Label != "":
			return nil, lock.ErrUnsupported
		}
		return get(ctx, key, opts...)
	}
}

// handsNothing declines to hand over, and does not say who watches.
type handsNothing struct{ backend.Backend }

func (h handsNothing) Unwrap() backend.Backend { return h.Backend }

func (handsNothing) HandOver(context.Context, backend.Hold, backend.Request) (backend.Grant, error) {
	return backend.Grant{}, backend.ErrUnsupported
}

func (h handsNothing) ReleaseTelling(ctx context.Context, hold backend.Hold) (int, error) {
	return -1, h.Release(ctx, hold)
}
