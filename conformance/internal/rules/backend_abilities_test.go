package rules_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	memlock "github.com/mortiselock/lock/memory"
)

// able is what a backend with records in memory can do.
type able interface {
	operated
	backend.Watcher
	backend.ReleaseTeller
	backend.BatchRenewer
	backend.HandOverer
}

// ableMutant breaks what one client can do.
type ableMutant struct {
	able
	seen *sync.Map // what all clients have seen

	try     func(ctx context.Context, req backend.Request) (backend.Grant, error)
	watch   func(ctx context.Context, key string) (<-chan backend.Hint, error)
	tell    func(ctx context.Context, hold backend.Hold) (int, error)
	batch   func(ctx context.Context, holds []backend.Hold) []backend.Renewal
	list    func(ctx context.Context, prefix string, visit func(backend.Record) bool) error
	force   func(ctx context.Context, key string, token uint64) error
	revoke  func(ctx context.Context, key string, token uint64) error
	hand    func(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error)
	raise   func(ctx context.Context, above uint64) error
	last    func(ctx context.Context) (uint64, error)
	says    func(g backend.Guarantees) backend.Guarantees
	servers func(key string) string
	ends    func() bool
	idle    func() bool // it waits for nothing
}

func (m *ableMutant) Guarantees() backend.Guarantees                { return m.says(m.able.Guarantees()) }
func (m *ableMutant) Partition(key string) string                   { return m.servers(key) }
func (m *ableMutant) Interruptible() bool                           { return m.ends() }
func (m *ableMutant) Immediate() bool                               { return m.idle() }
func (m *ableMutant) LastToken(ctx context.Context) (uint64, error) { return m.last(ctx) }

func (m *ableMutant) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	return m.try(ctx, req)
}

func (m *ableMutant) Watch(ctx context.Context, key string) (<-chan backend.Hint, error) {
	return m.watch(ctx, key)
}

func (m *ableMutant) ReleaseTelling(ctx context.Context, hold backend.Hold) (int, error) {
	return m.tell(ctx, hold)
}

func (m *ableMutant) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	return m.batch(ctx, holds)
}

func (m *ableMutant) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	return m.list(ctx, prefix, visit)
}

func (m *ableMutant) ForceRelease(ctx context.Context, key string, token uint64) error {
	return m.force(ctx, key, token)
}

func (m *ableMutant) Revoke(ctx context.Context, key string, token uint64) error {
	return m.revoke(ctx, key, token)
}

func (m *ableMutant) HandOver(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
	return m.hand(ctx, from, to)
}

func (m *ableMutant) RaiseFloor(ctx context.Context, above uint64) error { return m.raise(ctx, above) }

// ably is a lock in memory whose clients are changed.
func ably(change func(m *ableMutant)) conformance.Config {
	store, seen := memlock.NewStore(nil), new(sync.Map)
	cfg := memory()
	cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
		b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store})
		if err != nil {
			return nil, err
		}
		a := b.(able)
		m := &ableMutant{
			able: a, seen: seen, try: a.Try, watch: a.Watch, tell: a.ReleaseTelling, batch: a.RenewBatch, list: a.List,
			force: a.ForceRelease, revoke: a.Revoke, hand: a.HandOver, raise: a.RaiseFloor, last: a.LastToken,
			says:    func(g backend.Guarantees) backend.Guarantees { return g },
			servers: func(string) string { return "" }, ends: func() bool { return false }, idle: func() bool { return false },
		}
		change(m)
		return m, nil
	}
	cfg.Remove = func(_ context.Context, key string) error { store.Remove(key); return nil }
	return cfg
}

// anyToken has a negative number stand for every token.
func (m *ableMutant) anyToken(ctx context.Context, key string, token uint64) uint64 {
	if rec, err := m.Inspect(ctx, key); err == nil && token >= 1<<63 {
		return rec.Token
	}
	return token
}

// revoking takes note of which request had the hold that is revoked.
func (m *ableMutant) revoking() {
	m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
		g, err := m.able.Try(ctx, req)
		if err == nil {
			m.seen.Store(req.Key, req.ID)
		}
		return g, err
	}
	m.revoke = func(ctx context.Context, key string, token uint64) error {
		err := m.able.Revoke(ctx, key, token)
		if id, ok := m.seen.Load(key); ok && err == nil {
			m.seen.Store(id, token)
		}
		return err
	}
}

// deaf has watches of some keys signal nothing.
func (m *ableMutant) deaf(to func(key string) bool) {
	m.watch = func(ctx context.Context, key string) (<-chan backend.Hint, error) {
		if to(key) {
			return make(chan backend.Hint), nil
		}
		return m.able.Watch(ctx, key)
	}
}

// batchOf has a batch renew all holds by one of their TTLs, and say that it was by their own.
func (m *ableMutant) batchOf(which func(a, b time.Duration) time.Duration) {
	m.batch = func(ctx context.Context, holds []backend.Hold) []backend.Renewal {
		alike := slices.Clone(holds)
		for i := range alike {
			for _, h := range holds {
				alike[i].TTL = which(alike[i].TTL, h.TTL)
			}
		}
		answers := m.able.RenewBatch(ctx, alike)
		for i, h := range holds {
			if answers[i].Err == nil {
				answers[i].Validity.For = backend.ValidFor(h.TTL)
			}
		}
		return answers
	}
}

// listing has a list hide what it finds, or stop there. It is asked once for each list.
func (m *ableMutant) listing(asked func(ctx context.Context) func(rec backend.Record) (hide, stop bool)) {
	m.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
		judge := asked(ctx)
		return m.able.List(context.WithoutCancel(ctx), prefix, func(rec backend.Record) bool {
			hide, stop := judge(rec)
			return !stop && (hide || visit(rec))
		})
	}
}

func TestMutantsOfAbilities(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		rules  string
		change func(m *ableMutant)
	}{
		"a negative token is any to those who release by force": {"ForceReleaseByToken", func(m *ableMutant) {
			m.force = func(ctx context.Context, key string, token uint64) error {
				return m.able.ForceRelease(ctx, key, m.anyToken(ctx, key, token))
			}
		}},
		"a negative token is any to those who revoke": {"RevokeByToken", func(m *ableMutant) {
			m.revoke = func(ctx context.Context, key string, token uint64) error {
				return m.able.Revoke(ctx, key, m.anyToken(ctx, key, token))
			}
		}},
		"those who release by force have tokens of 32 bits": {"ForceReleaseByToken", func(m *ableMutant) {
			m.force = func(ctx context.Context, key string, token uint64) error {
				return m.able.ForceRelease(ctx, key, token%(1<<32)) // those of a memory are small
			}
		}},
		"those who revoke have tokens of 32 bits": {"RevokeByToken", func(m *ableMutant) {
			m.revoke = func(ctx context.Context, key string, token uint64) error {
				return m.able.Revoke(ctx, key, token%(1<<32))
			}
		}},
		"force takes the keys below along": {"ForceReleaseByToken", func(m *ableMutant) {
			m.force = func(ctx context.Context, key string, token uint64) error {
				err := m.able.ForceRelease(ctx, key, token)
				if err != nil {
					return err
				}
				return m.able.List(ctx, key+"/", func(rec backend.Record) bool {
					return m.able.ForceRelease(ctx, rec.Key, rec.Token) == nil
				})
			}
		}},
		"a batch renews what was revoked": {"RevokeByToken", func(m *ableMutant) {
			m.revoking()
			m.batch = func(ctx context.Context, holds []backend.Hold) []backend.Renewal {
				answers := m.able.RenewBatch(ctx, holds)
				for i, h := range holds {
					if _, revoked := m.seen.Load(h.ID); revoked {
						answers[i] = backend.Renewal{Validity: backend.Validity{Sent: m.Clock().Now(), For: backend.ValidFor(h.TTL)}}
					}
				}
				return answers
			}
		}},
		"a release that tells ends what was revoked": {"RevokeByToken", func(m *ableMutant) {
			m.revoking()
			m.tell = func(ctx context.Context, hold backend.Hold) (int, error) {
				if token, revoked := m.seen.Load(hold.ID); revoked {
					return 0, m.able.ForceRelease(ctx, hold.Key, token.(uint64))
				}
				return m.able.ReleaseTelling(ctx, hold)
			}
		}},
		"the request of a revoked hold gets it back": {"RevokeByToken", func(m *ableMutant) {
			m.revoking()
			try := m.try
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				if token, revoked := m.seen.Load(req.ID); revoked {
					_ = m.able.ForceRelease(ctx, req.Key, token.(uint64))
				}
				return try(ctx, req)
			}
		}},
		"force knows the token of who handed over": {"HandOverIsOneStep", func(m *ableMutant) {
			m.hand = func(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
				g, err := m.able.HandOver(ctx, from, to)
				if err == nil {
					m.seen.Store(from.Token, g.Token)
				}
				return g, err
			}
			m.force = func(ctx context.Context, key string, token uint64) error {
				if next, ok := m.seen.Load(token); ok {
					token = next.(uint64)
				}
				return m.able.ForceRelease(ctx, key, token)
			}
		}},
		"what was handed over is not signalled": {"WatchBeforeReturn", func(m *ableMutant) {
			m.hand = func(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
				m.seen.Store("handed over "+to.Key, true)
				return m.able.HandOver(ctx, from, to)
			}
			m.deaf(func(key string) bool { _, ok := m.seen.Load("handed over " + key); return ok })
		}},
		"a key with a star is not signalled": {"WatchBeforeReturn", func(m *ableMutant) {
			m.deaf(func(key string) bool { return strings.Contains(key, "*") })
		}},
		"a long key is not signalled": {"WatchBeforeReturn", func(m *ableMutant) {
			m.deaf(func(key string) bool { return len(key) > backend.MaxKey/2 })
		}},
		"a release tells of one client at most": {"ReleaseTells", func(m *ableMutant) {
			m.tell = func(ctx context.Context, hold backend.Hold) (int, error) {
				others, err := m.able.ReleaseTelling(ctx, hold)
				return min(others, 1), err
			}
		}},
		"a release that tells is content with what has run out": {"ReleaseTells", func(m *ableMutant) {
			m.tell = func(ctx context.Context, hold backend.Hold) (int, error) {
				others, err := m.able.ReleaseTelling(ctx, hold)
				_, released := m.seen.LoadOrStore(hold, true)
				if errors.Is(err, backend.ErrNotHeld) && !released {
					err = nil
				}
				return others, err
			}
		}},
		"what is interruptible takes its time for a release": {"CancelledSendsNothing", func(m *ableMutant) {
			m.ends = func() bool { return true }
			m.tell = func(ctx context.Context, hold backend.Hold) (int, error) {
				if err := ctx.Err(); err != nil {
					return 0, err
				}
				time.Sleep(150 * time.Millisecond)
				return m.able.ReleaseTelling(context.WithoutCancel(ctx), hold)
			}
		}},
		"what is interruptible takes its time for a try": {"CancelledSendsNothing", func(m *ableMutant) {
			m.ends = func() bool { return true }
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				if err := ctx.Err(); err != nil {
					return backend.Grant{}, err
				}
				time.Sleep(20 * time.Millisecond)
				return m.able.Try(context.WithoutCancel(ctx), req)
			}
		}},
		"what is immediate has tries wait for releases": {"CancelledSendsNothing", func(m *ableMutant) {
			m.idle = func() bool { return true }
			conn := make(chan struct{}, 1)
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				if err := ctx.Err(); err != nil {
					return backend.Grant{}, err
				}
				conn <- struct{}{}
				defer func() { <-conn }()
				return m.able.Try(context.WithoutCancel(ctx), req)
			}
			m.tell = func(ctx context.Context, hold backend.Hold) (int, error) {
				if err := ctx.Err(); err != nil {
					return 0, err
				}
				conn <- struct{}{}
				defer func() { <-conn }()
				time.Sleep(time.Millisecond) // less than the little time of who is interruptible
				return m.able.ReleaseTelling(context.WithoutCancel(ctx), hold)
			}
		}},
		"a floor of nothing is refused": {"RaisedFloorCounts", func(m *ableMutant) {
			m.raise = func(ctx context.Context, above uint64) error {
				if above == 0 {
					return backend.ErrInvalid
				}
				return m.able.RaiseFloor(ctx, above)
			}
		}},
		"a hand-over counts on as if the floor were where it was": {"RaisedFloorCounts", func(m *ableMutant) {
			m.raise = func(ctx context.Context, above uint64) error {
				m.seen.Store("raised", true)
				return m.able.RaiseFloor(ctx, above)
			}
			m.hand = func(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
				g, err := m.able.HandOver(ctx, from, to)
				if _, raised := m.seen.Load("raised"); raised && err == nil {
					g.Token -= 1 << 22
				}
				return g, err
			}
		}},
		"the largest token is that of a try": {"LastTokenCoversAll", func(m *ableMutant) {
			last, _ := m.seen.LoadOrStore("last", new(atomic.Uint64))
			largest := last.(*atomic.Uint64)
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.able.Try(ctx, req)
				for before := largest.Load(); err == nil && g.Token > before && !largest.CompareAndSwap(before, g.Token); {
					before = largest.Load()
				}
				return g, err
			}
			m.last = func(context.Context) (uint64, error) { return largest.Load(), nil }
		}},
		"a batch of whole pages lacks the last": {"BatchRenewMixed", func(m *ableMutant) {
			m.batch = func(ctx context.Context, holds []backend.Hold) []backend.Renewal {
				const page = 50
				answers, sent := make([]backend.Renewal, len(holds)), len(holds)
				if len(holds)%page == 0 {
					sent -= min(page, len(holds))
				}
				copy(answers, m.able.RenewBatch(ctx, holds[:sent]))
				return answers
			}
		}},
		"a batch renews three hundred": {"BatchRenewMixed", func(m *ableMutant) {
			m.batch = func(ctx context.Context, holds []backend.Hold) []backend.Renewal {
				answers := make([]backend.Renewal, len(holds))
				copy(answers, m.able.RenewBatch(ctx, holds[:min(len(holds), 300)]))
				return answers
			}
		}},
		"a batch renews three hundred, and says all": {"BatchRenewMixed", func(m *ableMutant) {
			m.batch = func(ctx context.Context, holds []backend.Hold) []backend.Renewal {
				answers := m.able.RenewBatch(ctx, holds[:min(len(holds), 300)])
				for len(answers) < len(holds) {
					answers = append(answers, answers[0])
				}
				return answers
			}
		}},
		"a batch has each hold once": {"BatchRenewMixed", func(m *ableMutant) {
			m.batch = func(ctx context.Context, holds []backend.Hold) []backend.Renewal {
				answers := m.able.RenewBatch(ctx, holds)
				for i, h := range holds {
					if slices.Contains(holds[:i], h) {
						answers[i] = backend.Renewal{Err: backend.ErrNotHeld}
					}
				}
				return answers
			}
		}},
		"a batch extends nothing after one that is lost": {"BatchRenewMixed", func(m *ableMutant) {
			m.batch = func(ctx context.Context, holds []backend.Hold) []backend.Renewal {
				answers, lost := make([]backend.Renewal, len(holds)), false
				for i, h := range holds {
					if h.TTL == 0 || !lost {
						answers[i].Validity, answers[i].Err = m.Renew(ctx, h)
						lost = lost || answers[i].Err != nil
						continue
					}
					h.TTL = time.Nanosecond
					_, answers[i].Err = m.Renew(ctx, h)
					if answers[i].Err == nil {
						answers[i].Validity = backend.Validity{Sent: m.Clock().Now(), For: backend.ValidFor(holds[i].TTL)}
					}
				}
				return answers
			}
		}},
		"a batch renews by its shortest TTL": {"BatchRenewMixed", func(m *ableMutant) {
			m.batchOf(func(a, b time.Duration) time.Duration { return min(a, b) })
		}},
		"a batch renews by its longest TTL": {"BatchRenewMixed", func(m *ableMutant) {
			m.batchOf(func(a, b time.Duration) time.Duration { return max(a, b) })
		}},
		"a word that nobody knows": {"GuaranteesAreStable", func(m *ableMutant) {
			m.says = func(g backend.Guarantees) backend.Guarantees { g.Expiry = "sundial"; return g }
		}},
		"an event that nobody knows": {"GuaranteesAreStable", func(m *ableMutant) {
			m.says = func(g backend.Guarantees) backend.Guarantees { g.HoldsSurvive = []backend.Fault{"flood"}; return g }
		}},
		"advice for a longer TTL than any": {"GuaranteesAreStable", func(m *ableMutant) {
			m.says = func(g backend.Guarantees) backend.Guarantees {
				g.MaxTTL, g.LongerTTL = 0, "raise the limit"
				return g
			}
		}},
		"an empty assumption": {"GuaranteesAreStable", func(m *ableMutant) {
			m.says = func(g backend.Guarantees) backend.Guarantees { g.Assumptions = []string{" "}; return g }
		}},
		"a partition for each key": {"GuaranteesAreStable", func(m *ableMutant) {
			m.servers = func(key string) string { return key }
		}},
		"interruptible now and then": {"GuaranteesAreStable", func(m *ableMutant) {
			var asked atomic.Int64
			m.ends = func() bool { return asked.Add(1)%2 == 0 }
		}},
		"a list loses what is at the bound of its page": {"ListShowsHeldKeys", func(m *ableMutant) {
			m.listing(func(context.Context) func(rec backend.Record) (hide, stop bool) {
				n := 0
				return func(backend.Record) (bool, bool) { n++; return n%128 == 0, false }
			})
		}},
		"a list ends with a visitor who takes his time": {"ListShowsHeldKeys", func(m *ableMutant) {
			m.listing(func(context.Context) func(rec backend.Record) (hide, stop bool) {
				last := time.Now()
				return func(backend.Record) (bool, bool) {
					late := time.Since(last) > 20*time.Millisecond
					last = time.Now()
					return false, late
				}
			})
		}},
		"a list that its context cuts short is content": {"ListShowsHeldKeys", func(m *ableMutant) {
			m.listing(func(ctx context.Context) func(rec backend.Record) (hide, stop bool) {
				return func(backend.Record) (bool, bool) { return false, ctx.Err() != nil }
			})
		}},
		"a list does not know the latest grants": {"ListShowsHeldKeys", func(m *ableMutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.able.Try(ctx, req)
				if err == nil {
					m.seen.Store(req.Key, time.Now())
				}
				return g, err
			}
			m.listing(func(context.Context) func(rec backend.Record) (hide, stop bool) {
				began := time.Now()
				return func(rec backend.Record) (bool, bool) {
					granted, ok := m.seen.Load(rec.Key)
					return ok && began.Sub(granted.(time.Time)) < 5*time.Millisecond, false
				}
			})
		}},
		"a list hides what is about to end": {"ListShowsHeldKeys", func(m *ableMutant) {
			m.listing(func(context.Context) func(rec backend.Record) (hide, stop bool) {
				return func(rec backend.Record) (bool, bool) { return rec.Remaining < 50*time.Millisecond, false }
			})
		}},
		"a list shows what was taken again meanwhile again": {"ListShowsHeldKeys", func(m *ableMutant) {
			m.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
				shown, stopped := map[string]uint64{}, false
				look := func(rec backend.Record) bool {
					if shown[rec.Key] != rec.Token {
						shown[rec.Key], stopped = rec.Token, !visit(rec)
					}
					return !stopped
				}
				if err := m.able.List(ctx, prefix, look); err != nil || stopped {
					return err
				}
				return m.able.List(ctx, prefix, look)
			}
		}},
		"a list ends with what was released meanwhile": {"ListShowsHeldKeys", func(m *ableMutant) {
			m.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
				var keys []string
				err := m.able.List(ctx, prefix, func(rec backend.Record) bool { keys = append(keys, rec.Key); return true })
				for _, key := range keys {
					rec, gone := m.able.Inspect(ctx, key)
					if gone != nil || !visit(rec) {
						return err
					}
				}
				return err
			}
		}},
		"a list shows fewer waiters than unknown": {"ListShowsHeldKeys", func(m *ableMutant) {
			m.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
				return m.able.List(ctx, prefix, func(rec backend.Record) bool { rec.Waiters = -2; return visit(rec) })
			}
		}},
		"a list shows the shorter of two holds": {"ListShowsHeldKeys", func(m *ableMutant) {
			m.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
				return m.able.List(ctx, prefix, func(rec backend.Record) bool {
					if rec.Holds > 1 {
						rec.Remaining /= 2
					}
					return visit(rec)
				})
			}
		}},
	} {
		atOnce(t, &all, name, func(t *testing.T) { mustFail(t, ably(c.change), c.rules) })
	}
	atOnce(t, &all, "nothing is wrong", func(t *testing.T) {
		rep, err := conformance.Check(t.Context(), withOnly(ably(func(*ableMutant) {}), "backend"))
		if err != nil || !rep.OK() {
			t.Fatal(err, rep)
		}
	})
	all.Wait()
}

// forcing is a queue whose places go with a hold that is removed by force.
type forcing struct {
	placed
	takes func(q placed, key string, token uint64, err error) bool
}

// placed is what a backend with a queue in memory can do.
type placed interface {
	operated
	backend.Queuer
	backend.LossNotifier
}

// ForceRelease removes what follows too, where that is the mistake.
func (f forcing) ForceRelease(ctx context.Context, key string, token uint64) error {
	err := f.placed.ForceRelease(ctx, key, token)
	for f.takes(f.placed, key, token, err) {
		rec, look := f.Inspect(ctx, key)
		if look != nil {
			err = nil
			break
		}
		err = f.placed.ForceRelease(ctx, key, rec.Token)
	}
	return err
}

func TestMutantsOfForceInAQueue(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for name, takes := range map[string]func(q placed, key string, token uint64, err error) bool{
		"all places go with the hold": func(_ placed, _ string, _ uint64, err error) bool { return err == nil },
		"a hold that ran out is the next place": func(q placed, key string, token uint64, err error) bool {
			rec, look := q.Inspect(context.Background(), key)
			return errors.Is(err, backend.ErrNotHeld) && look == nil && token > 1<<40 && rec.Token > token+1
		},
	} {
		atOnce(t, &all, name, func(t *testing.T) {
			store, cfg := memlock.NewStore(nil), memory()
			cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
				b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store, Queue: true})
				if err != nil {
					return nil, err
				}
				return forcing{b.(placed), takes}, nil
			}
			mustFail(t, cfg, "ForceReleaseByToken")
		})
	}
	all.Wait()
}
