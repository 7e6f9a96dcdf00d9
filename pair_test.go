package lock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/linear"
	"github.com/mortiselock/lock/internal/suites"
	memlock "github.com/mortiselock/lock/memory"
)

// twoStores are an old and a new store for tests of pairs, in virtual time.
type twoStores struct {
	t         *testing.T
	old, next *memlock.Store
}

func pairs(t *testing.T, test func(t *testing.T, s twoStores)) {
	synctest.Test(t, func(t *testing.T) {
		test(t, twoStores{t, memlock.NewStore(nil), memlock.NewStore(nil)})
	})
}

func (s twoStores) open(store *memlock.Store, set ...func(*memlock.Options)) *lock.Client {
	o := memlock.Options{Store: store}
	for _, f := range set {
		f(&o)
	}
	l, err := memlock.New(s.t.Context(), &o)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = l.Close() })
	return l
}

func (s twoStores) pair(set ...func(*memlock.Options)) *lock.Pair {
	p, err := lock.Both(s.open(s.old, set...), s.open(s.next, set...))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { assert.NoError(s.t, p.Close()) })
	return p
}

// TestClosedWhileTheSecondStoreIsAsked: who tries beside Close is told that it is closed, and not
// that a server is to blame for the end of its first hold.
func TestClosedWhileTheSecondStoreIsAsked(t *testing.T) {
	pairs(t, func(t *testing.T, s twoStores) {
		p, err := lock.Both(s.open(s.old), noAnswer{s.open(s.next)})
		require.NoError(t, err)
		tried := make(chan error, 1)
		go func() {
			_, err := p.TryAcquire(t.Context(), "k")
			tried <- err
		}()
		synctest.Wait()
		require.NoError(t, p.Close())
		require.ErrorIs(t, <-tried, lock.ErrClosed)
	})
}

// noAnswer is a Locker whose tries return when their contexts end.
type noAnswer struct{ lock.Locker }

func (noAnswer) TryAcquire(ctx context.Context, _ string, _ ...lock.Option) (lock.Lease, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// free reports whether nobody holds the key in the store.
func (s twoStores) free(store *memlock.Store, key string) bool {
	l := s.open(store)
	defer l.Close()
	lease, err := l.TryAcquire(s.t.Context(), key)
	if err != nil {
		require.ErrorIs(s.t, err, lock.ErrHeld)
		return false
	}
	require.NoError(s.t, lease.Release(s.t.Context()))
	return true
}

// conformanceOfPair is a Config for a pair of stores, to which Open or OpenBackend is added.
func conformanceOfPair(t *testing.T, old, next *memlock.Store) conformance.Config {
	return conformance.Config{
		Remove: func(_ context.Context, key string) error {
			old.Remove(key)
			next.Remove(key)
			return nil
		},
		Judge:  linear.Judge(t),
		Budget: 5 * time.Second,
	}
}

// TestConformanceOfPair runs the suite on pairs in virtual time.
func TestConformanceOfPair(t *testing.T) {
	for name, queue := range map[string]bool{"record": false, "queue": true} {
		conformsInVirtualTime(t, name, func(t *testing.T) conformance.Config {
			old, next := memlock.NewStore(nil), memlock.NewStore(nil)
			cfg := conformanceOfPair(t, old, next)
			cfg.Open = func(ctx context.Context) (lock.Locker, error) {
				first, err := memlock.New(ctx, &memlock.Options{Store: old, Queue: queue})
				if err != nil {
					return nil, err
				}
				second, err := memlock.New(ctx, &memlock.Options{Store: next, Queue: queue})
				if err != nil {
					return nil, err
				}
				return lock.Both(first, second)
			}
			return cfg
		})
	}
}

// TestAlsoOnPairOfWhichOneIsDisturbed runs it with a server that can be disturbed, that of one
// side.
func TestAlsoOnPairOfWhichOneIsDisturbed(t *testing.T) {
	suites.Also(t)
	for name, queue := range map[string]bool{"record": false, "queue": true} {
		for _, disturbed := range []string{"old", "new"} {
			conformsInVirtualTime(t, name+", disturbed in the "+disturbed+" store", func(t *testing.T) conformance.Config {
				old, next := memlock.NewStore(nil), memlock.NewStore(nil)
				cfg := conformanceOfPair(t, old, next)
				store, other := old, next
				cfg.Deviations = map[string]string{"HolderIsShown": "the token of a pair is the larger of two, and each store shows its own"}
				if disturbed == "new" {
					store, other = next, old
					const behind = "one client waits for the new store, and keeps the others out of the old one"
					cfg.Deviations["SilenceIsNotHeld"], cfg.Deviations["NoLockstep"] = behind, behind
				}
				cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
					return memlock.NewBackend(ctx, &memlock.Options{Store: store, Queue: queue})
				}
				cfg.Wrap = func(b backend.Backend, ttl time.Duration) (lock.Locker, error) {
					one, err := lock.New(b, &lock.Options{TTL: ttl})
					if err != nil {
						return nil, err
					}
					beside, err := memlock.New(t.Context(), &memlock.Options{Store: other, Queue: queue, Lock: lock.Options{TTL: ttl}})
					if err != nil {
						return nil, err
					}
					if disturbed == "new" {
						return lock.Both(beside, one)
					}
					return lock.Both(one, beside)
				}
				return cfg
			})
		}
	}
}

// conformsInVirtualTime runs the suite in a bubble, where nothing is ever late.
func conformsInVirtualTime(t *testing.T, name string, config func(t *testing.T) conformance.Config) {
	t.Helper()
	var rep conformance.Report
	synctest.Test(t, func(t *testing.T) {
		var err error
		rep, err = conformance.Check(t.Context(), config(t))
		require.NoError(t, err)
	})
	t.Run(name, func(t *testing.T) {
		for _, r := range rep.Results {
			t.Run(r.Rule, func(t *testing.T) {
				switch r.Verdict {
				case conformance.Pass, conformance.Unclaimed:
				case conformance.NotClaimed, conformance.Skipped, conformance.Deviation:
					t.Skipf("%s: %s", r.Verdict, r.Evidence)
				default: // nothing is slow here
					assert.Fail(t, string(r.Verdict), "%s\n%s", r.Statement, r.Evidence)
				}
			})
		}
		t.Log(rep.Counts())
	})
}

// TestPairExcludesNeighbours: who uses the old store, or the new one, is kept out, and
// keeps out.
func TestPairExcludesNeighbours(t *testing.T) {
	pairs(t, func(t *testing.T, s twoStores) {
		ctx := t.Context()
		p := s.pair()
		lease, err := p.TryAcquire(ctx, "k")
		require.NoError(t, err)
		require.False(t, s.free(s.old, "k"))
		require.False(t, s.free(s.next, "k"))
		require.NoError(t, lease.Release(ctx))
		require.ErrorIs(t, lease.Release(ctx), lock.ErrNotHeld)
		for name, store := range map[string]*memlock.Store{"old": s.old, "new": s.next} {
			alone, err := s.open(store).TryAcquire(ctx, "k", lock.WithLabel("alone"))
			require.NoError(t, err)
			_, err = p.TryAcquire(ctx, "k")
			require.ErrorIs(t, err, lock.ErrHeld)
			require.ErrorContains(t, err, "the "+name+" store (memory)")
			var held *lock.HeldError
			require.ErrorAs(t, err, &held)
			assert.Equal(t, "alone", held.Holder.Label)
			for _, other := range []*memlock.Store{s.old, s.next} {
				assert.Equal(t, other != store, s.free(other, "k"), "a refused TryAcquire has left something, or nothing where somebody is")
			}
			require.NoError(t, alone.Release(ctx))
		}
	})
}

// TestPairWaitsWithTheOldStoreHeld: the old store is renewed while the new one is waited
// for, with and without renewal, and is released when the wait is given up.
func TestPairWaitsWithTheOldStoreHeld(t *testing.T) {
	for name, opts := range map[string][]lock.Option{
		"renewed":  {lock.WithTTL(3 * time.Second)},
		"by hand":  {lock.WithTTL(3 * time.Second), lock.WithoutRenewal()},
		"max hold": {lock.WithTTL(3 * time.Second), lock.WithMaxHold(5 * time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			pairs(t, func(t *testing.T, s twoStores) {
				ctx := t.Context()
				p := s.pair()
				alone, err := s.open(s.next).TryAcquire(ctx, "k")
				require.NoError(t, err)

				short, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				_, err = p.Acquire(short, "k", opts...)
				require.ErrorIs(t, err, lock.ErrHeld)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.True(t, s.free(s.old, "k"))

				got := make(chan lock.Lease, 1)
				go func() {
					l, err := p.Acquire(ctx, "k", opts...)
					assert.NoError(t, err)
					got <- l
				}()
				for range 100 {
					time.Sleep(time.Second)
					require.False(t, s.free(s.old, "k"), "the old store was let go while the new one was waited for")
				}
				require.NoError(t, alone.Release(ctx))
				l := <-got
				require.NoError(t, l.Context().Err())
				until, ok := l.Deadline()
				require.True(t, ok)
				assert.Greater(t, time.Until(until), 2*time.Second-200*time.Millisecond)
				if name == "max hold" {
					begun := time.Now()
					<-l.Context().Done()
					require.ErrorIs(t, cause(l), lock.ErrMaxHold)
					assert.Equal(t, 5*time.Second, time.Since(begun).Round(100*time.Millisecond))
				}
				_ = l.Release(ctx)
				synctest.Wait() // a lost lease is given back in the background
				require.True(t, s.free(s.old, "k"))
				require.True(t, s.free(s.next, "k"))
			})
		})
	}
}

// TestPairIsLostWithEitherStore: the cause says which one, and the other one is free
// without a Release.
func TestPairIsLostWithEitherStore(t *testing.T) {
	for _, which := range []string{"old", "new"} {
		t.Run(which, func(t *testing.T) {
			pairs(t, func(t *testing.T, s twoStores) {
				ctx := t.Context()
				store, other := s.old, s.next
				if which == "new" {
					store, other = s.next, s.old
				}
				faults := map[*memlock.Store]*faultlock.Faults{}
				open := func(store *memlock.Store) *lock.Client {
					l, f := disturbed(t, &memlock.Options{Store: store})
					faults[store] = f
					return l
				}
				p, err := lock.Both(open(s.old), open(s.next))
				require.NoError(t, err)
				defer func() { assert.NoError(t, p.Close()) }()
				l, err := p.Acquire(ctx, "k", lock.WithTTL(3*time.Second))
				require.NoError(t, err)
				store.Remove("k")
				<-l.Context().Done()
				require.ErrorIs(t, cause(l), lock.ErrTakenOver)
				require.ErrorIs(t, cause(l), lock.ErrLost)
				require.ErrorContains(t, cause(l), "the "+which+" store (memory)")
				synctest.Wait()
				require.True(t, s.free(other, "k"), "the other store is still held")
				require.ErrorIs(t, l.Renew(ctx), lock.ErrNotHeld)
				require.ErrorIs(t, l.Release(ctx), lock.ErrLost)

				l, err = p.Acquire(ctx, "k", lock.WithTTL(3*time.Second))
				require.NoError(t, err)
				faults[store].All(faultlock.Drop(), faultlock.OpRenew)
				<-l.Context().Done()
				require.ErrorIs(t, cause(l), lock.ErrExpired)
				require.ErrorContains(t, cause(l), "the "+which+" store")
				faults[store].Heal()
				require.ErrorIs(t, l.Release(ctx), lock.ErrLost)
			})
		})
	}
}

// TestPairStartsAgainWhenTheOldStoreLosesTheWaiter: a waiter whose hold in the old store
// is removed does not go on with the new one alone.
func TestPairStartsAgainWhenTheOldStoreLosesTheWaiter(t *testing.T) {
	pairs(t, func(t *testing.T, s twoStores) {
		ctx := t.Context()
		p := s.pair()
		alone, err := s.open(s.next).TryAcquire(ctx, "k")
		require.NoError(t, err)
		got := make(chan lock.Lease, 1)
		go func() {
			l, err := p.Acquire(ctx, "k", lock.WithTTL(3*time.Second))
			assert.NoError(t, err)
			got <- l
		}()
		time.Sleep(time.Second)
		s.old.Remove("k")
		time.Sleep(5 * time.Second)
		require.False(t, s.free(s.old, "k"), "the waiter has not come back to the old store")
		require.NoError(t, alone.Release(ctx))
		l := <-got
		require.False(t, s.free(s.old, "k"))
		require.False(t, s.free(s.next, "k"))
		require.NoError(t, l.Release(ctx))
	})
}

// TestPairTokens: the larger one counts, and tokens that will fall are told once.
func TestPairTokens(t *testing.T) {
	pairs(t, func(t *testing.T, s twoStores) {
		ctx := t.Context()
		var text bytes.Buffer
		log := slog.New(slog.NewTextHandler(&text, nil))
		p := s.pair(func(o *memlock.Options) { o.Lock.Logger = log })
		old, next := s.open(s.old), s.open(s.next)
		var last uint64
		for range 20 {
			for _, l := range []lock.Locker{old, p, next, p} {
				time.Sleep(time.Millisecond)
				lease, err := l.Acquire(ctx, "k")
				require.NoError(t, err)
				require.Greater(t, lease.Token(), last)
				last = lease.Token()
				require.NoError(t, lease.Release(ctx))
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		var text bytes.Buffer
		high, err := memlock.New(ctx, &memlock.Options{Store: memlock.NewStore(nil)})
		require.NoError(t, err)
		time.Sleep(time.Hour)
		low := tokenless{high, 7}
		next, err := memlock.New(ctx, &memlock.Options{Store: memlock.NewStore(nil), Lock: lock.Options{Logger: slog.New(slog.NewTextHandler(&text, nil))}})
		require.NoError(t, err)
		defer next.Close()
		p, err := lock.Both(next, low)
		require.NoError(t, err)
		defer p.Close()
		for range 3 {
			lease, err := p.Acquire(ctx, "k")
			require.NoError(t, err)
			assert.Greater(t, lease.Token(), uint64(7))
			require.NoError(t, lease.Release(ctx))
		}
		assert.Equal(t, 1, strings.Count(text.String(), "level=WARN"), text.String())
		assert.Contains(t, text.String(), "new_token=7")
	})
}

// tokenless is a Locker that says nothing of its guarantees, and whose tokens are small.
type tokenless struct {
	lock.Locker
	token uint64
}

func (l tokenless) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	lease, err := l.Locker.Acquire(ctx, key, opts...)
	return smallToken{lease, l.token}, err
}

func (l tokenless) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	lease, err := l.Locker.TryAcquire(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	return smallToken{lease, l.token}, nil
}

type smallToken struct {
	lock.Lease
	token uint64
}

func (l smallToken) Token() uint64 { return l.token }

// TestPairRaisesTokens of a store that counts from nothing, so that tokens also rise from
// one step to the next, in both directions.
func TestPairRaisesTokens(t *testing.T) {
	for _, raised := range []string{"old", "new"} {
		t.Run(raised, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				clocked, err := memlock.NewBackend(ctx, &memlock.Options{Store: memlock.NewStore(nil)})
				require.NoError(t, err)
				inner, err := memlock.NewBackend(ctx, &memlock.Options{Store: memlock.NewStore(nil)})
				require.NoError(t, err)
				counting := &countingBackend{Backend: inner}
				open := func(b backend.Backend) *lock.Client {
					c, err := lock.New(b, nil)
					require.NoError(t, err)
					t.Cleanup(func() { _ = c.Close() })
					return c
				}
				one, other := open(clocked), open(counting)
				sides := []lock.Locker{other, one}
				if raised == "new" {
					sides = []lock.Locker{one, other}
				}
				p, err := lock.Both(sides[0], sides[1])
				require.NoError(t, err)
				var last uint64
				for _, step := range [][]lock.Locker{{sides[0], p, sides[0], p, sides[0]}, {p, sides[1], p, sides[1]}} {
					for _, l := range step {
						time.Sleep(time.Millisecond)
						lease, err := l.Acquire(ctx, "k")
						require.NoError(t, err)
						require.Greater(t, lease.Token(), last)
						last = lease.Token()
						require.NoError(t, lease.Release(ctx))
					}
				}
				counting.broken.Store(true)
				time.Sleep(time.Second)
				_, err = p.TryAcquire(ctx, "k")
				require.ErrorIs(t, err, lock.ErrUnavailable)
				for _, l := range sides {
					lease, err := l.TryAcquire(ctx, "k")
					require.NoError(t, err, "it is still held")
					require.NoError(t, lease.Release(ctx))
				}
			})
		})
	}
}

// TestPairRaisesNoCounters: where tokens follow a clock, raising them is the operators', not
// that of each acquisition.
func TestPairRaisesNoCounters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuses := func(b backend.Backend) backend.Backend {
			return notRaised{b, func() error { t.Error("the floor was raised"); return nil }}
		}
		for _, wrap := range []func(backend.Backend) backend.Backend{ahead(time.Hour), whole} {
			p, err := lock.Both(tokensOf(t, wrap), tokensOf(t, refuses))
			require.NoError(t, err)
			lease, err := p.TryAcquire(t.Context(), "k")
			require.NoError(t, err)
			require.NoError(t, lease.Release(t.Context()))
		}
	})
}

// countingBackend has tokens from one on, until it is told to count on from more.
type countingBackend struct {
	backend.Backend
	last   atomic.Uint64
	broken atomic.Bool
}

func (b *countingBackend) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := b.Backend.Try(ctx, req)
	g.Token = b.last.Add(1)
	return g, err
}

// Guarantees say that it counts by itself, as a revision.
func (b *countingBackend) Guarantees() backend.Guarantees {
	g := b.Backend.Guarantees()
	g.Token = backend.TokenRevision
	return g
}

func (b *countingBackend) RaiseFloor(_ context.Context, above uint64) error {
	if b.broken.Load() {
		return errors.New("broken")
	}
	b.last.Store(max(b.last.Load(), above))
	return nil
}

// TestPairRefusesWhatOneCannotHonour, before the other one is asked.
func TestPairRefusesWhatOneCannotHonour(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	client := func() *lock.Client {
		l, err := memlock.New(ctx, &memlock.Options{Store: memlock.NewStore(nil)})
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	old := client()
	_, err := lock.Both(old, nil)
	require.ErrorIs(t, err, lock.ErrInvalid)
	_, err = lock.Both(old, old)
	require.ErrorIs(t, err, lock.ErrInvalid)
	strict := func(change func(*backend.Guarantees)) lock.Locker {
		l := client()
		g := l.Guarantees()
		g.Name = "strict"
		change(&g)
		return claiming{l, g}
	}
	_, err = lock.Both(strict(func(g *backend.Guarantees) { g.MinTTL = time.Minute }), strict(func(g *backend.Guarantees) { g.MaxTTL = time.Second }))
	require.ErrorIs(t, err, lock.ErrInvalid)
	require.ErrorContains(t, err, "no TTL fits")
	p, err := lock.Both(old, strict(func(g *backend.Guarantees) {
		g.MinTTL, g.WithoutRenewal, g.Reentrancy = time.Minute, false, backend.ReentrancyNone
		g.TTLGrain = 7 * time.Millisecond
	}))
	require.NoError(t, err)
	for _, c := range []struct {
		opt  lock.Option
		want error
	}{
		{lock.WithTTL(time.Second), lock.ErrInvalid},
		{lock.WithoutRenewal(), lock.ErrUnsupported},
		{lock.WithOwner("me"), lock.ErrUnsupported},
	} {
		_, err := p.TryAcquire(ctx, "k", c.opt)
		require.ErrorIs(t, err, c.want)
		assert.ErrorContains(t, err, "strict")
	}
	g := p.Guarantees()
	assert.Equal(t, "memory and strict", g.Name)
	assert.Equal(t, time.Minute, g.MinTTL)
	assert.False(t, g.WithoutRenewal)
	assert.Equal(t, backend.ReentrancyNone, g.Reentrancy)
	require.NoError(t, g.CheckTTL(g.NearestTTL(0)))
	require.NoError(t, p.Close())
	_, err = p.TryAcquire(ctx, "k")
	require.ErrorIs(t, err, lock.ErrClosed)
	_, err = old.TryAcquire(ctx, "k")
	require.ErrorIs(t, err, lock.ErrClosed, "Close has left a Locker open")
}

// TestPairOnOneStore: an acquisition that would wait for itself is told so.
func TestPairOnOneStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore(nil)
		client := func() lock.Locker {
			l, err := memlock.New(t.Context(), &memlock.Options{Store: store})
			require.NoError(t, err)
			return l
		}
		p, err := lock.Both(client(), client())
		require.NoError(t, err)
		other := client()
		for _, get := range []func(context.Context, string, ...lock.Option) (lock.Lease, error){p.Acquire, p.TryAcquire} {
			held, err := other.TryAcquire(t.Context(), "k")
			require.NoError(t, err)
			time.AfterFunc(time.Second, func() { assert.NoError(t, held.Release(t.Context())) })
			if _, err := p.TryAcquire(t.Context(), "k"); assert.ErrorIs(t, err, lock.ErrHeld) {
				assert.NotErrorIs(t, err, lock.ErrInvalid, "somebody else holds it")
			}
			time.Sleep(2 * time.Second)
			_, err = get(t.Context(), "k")
			assert.ErrorIs(t, err, lock.ErrInvalid)
			assert.Zero(t, store.Len(), "something is held")
			_, err = naivePair{sides: [2]lock.Locker{other, other}}.TryAcquire(t.Context(), "k")
			assert.NotErrorIs(t, err, lock.ErrInvalid, "who does not look for its mark can't tell")
		}
		require.NoError(t, errors.Join(p.Close(), other.Close()))
		time.Sleep(time.Hour)
	})
}

// TestPairOwnersAreThoseOfTheWeakerStore: where one store counts the holds of an owner in
// the Locker, another Locker with the same owner is kept out of both. Otherwise it would
// come into one of them beside the first, and could get its token again.
func TestPairOwnersAreThoseOfTheWeakerStore(t *testing.T) {
	for reentrancy, want := range map[backend.Reentrancy]error{backend.ReentrancyServer: nil, backend.ReentrancyClient: lock.ErrHeld} {
		pairs(t, func(t *testing.T, s twoStores) {
			ctx := t.Context()
			pair := func() lock.Locker {
				next := s.open(s.next)
				g := next.Guarantees()
				g.Reentrancy = reentrancy
				p, err := lock.Both(s.open(s.old), claiming{next, g})
				require.NoError(t, err)
				assert.Equal(t, reentrancy, p.Guarantees().Reentrancy)
				return p
			}
			a, b := pair(), pair()
			first, err := a.TryAcquire(ctx, "k", lock.WithOwner("me"))
			require.NoError(t, err)
			again, err := a.TryAcquire(ctx, "k", lock.WithOwner("me"))
			require.NoError(t, err)
			assert.Equal(t, first.Token(), again.Token())
			other, err := b.TryAcquire(ctx, "k", lock.WithOwner("me"))
			require.ErrorIs(t, err, want)
			if err == nil {
				require.NoError(t, other.Release(ctx))
			}
			require.NoError(t, again.Release(ctx))
			require.False(t, s.free(s.old, "k"))
			require.NoError(t, first.Release(ctx))
			require.True(t, s.free(s.old, "k"))
		})
	}
}

type claiming struct {
	lock.Locker
	g backend.Guarantees
}

func (c claiming) Guarantees() backend.Guarantees { return c.g }

// TestPairShowsNoSecret in any way of printing.
func TestPairShowsNoSecret(t *testing.T) {
	pairs(t, func(t *testing.T, s twoStores) {
		p := s.pair()
		l, err := p.Acquire(t.Context(), "k", lock.WithOwner("s3cret"))
		require.NoError(t, err)
		var out bytes.Buffer
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			for _, what := range []any{p, l, l.Context(), []any{l}} {
				fmt.Fprintf(&out, verb+"\n", what)
			}
		}
		slog.New(slog.NewJSONHandler(&out, nil)).Info("m", "x", l)
		assert.NotContains(t, out.String(), "s3cret")
		assert.NotContains(t, out.String(), fmt.Sprintf("%x", "s3cret"))
		require.NoError(t, l.Release(t.Context()))
	})
}

// TestPairNeverHasTwoHolders moves clients at random through the three steps of a change
// of stores, while a control goes from the first to the last at once.
func TestPairNeverHasTwoHolders(t *testing.T) {
	for name, steps := range map[string]int{"three steps": 3, "control": 2} {
		t.Run(name, func(t *testing.T) {
			pairs(t, func(t *testing.T, s twoStores) {
				var inside, overlaps atomic.Int32
				var falls atomic.Int32
				var mu sync.Mutex
				var last uint64
				phase := func(i int) lock.Locker {
					switch {
					case i == 0:
						return s.open(s.old)
					case i == steps-1:
						return s.open(s.next)
					}
					return s.pair()
				}
				var all sync.WaitGroup
				for step := range steps - 1 {
					// All copies are in this step or in the next one.
					for n := range 6 {
						all.Go(func() {
							for round := range 8 {
								l := phase(step)
								if round*6+n >= 20 {
									l = phase(step + 1)
								}
								lease, err := l.Acquire(t.Context(), "k", lock.WithTTL(3*time.Second))
								if !assert.NoError(t, err) {
									return
								}
								if inside.Add(1) > 1 {
									overlaps.Add(1)
								}
								mu.Lock()
								if lease.Token() <= last {
									falls.Add(1)
								}
								last = lease.Token()
								mu.Unlock()
								time.Sleep(time.Duration(1+n*round%7) * 100 * time.Millisecond)
								inside.Add(-1)
								if err := lease.Release(t.Context()); !errors.Is(err, lock.ErrNotHeld) {
									assert.NoError(t, err)
								}
								time.Sleep(time.Duration(n*round%5) * 100 * time.Millisecond)
							}
						})
					}
					all.Wait()
				}
				if steps == 2 {
					require.NotZero(t, overlaps.Load(), "the oracle sees nothing")
					return
				}
				require.Zero(t, overlaps.Load())
				require.Zero(t, falls.Load(), "tokens fell")
			})
		})
	}
}

// A lease that comes has a third of its TTL in both stores, whichever is slow, or it is none.
// raising is a backend whose tokens are revisions, and whose floor is raised by a function.
type raising struct {
	backend.Backend
	raise func()
}

func (r raising) RaiseFloor(context.Context, uint64) error {
	r.raise()
	return nil
}

func (r raising) Unwrap() backend.Backend { return r.Backend }

func (r raising) Guarantees() backend.Guarantees {
	g := r.Backend.Guarantees()
	g.Token = backend.TokenRevision
	return g
}

// Close may come when both stores have granted the key.
func TestPairClosesBetweenGrantAndReturn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p *lock.Pair
		var sides [2]lock.Locker
		for i := range sides {
			b, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)})
			require.NoError(t, err)
			sides[i], err = lock.New(raising{b, func() {
				go func() { _ = p.Close() }()
				time.Sleep(time.Second)
			}}, nil)
			require.NoError(t, err)
		}
		for range 2 { // so that the tokens of the old store are the larger ones
			lease, err := sides[0].TryAcquire(t.Context(), "k")
			require.NoError(t, err)
			require.NoError(t, lease.Release(t.Context()))
		}
		var err error
		p, err = lock.Both(sides[0], sides[1])
		require.NoError(t, err)
		_, err = p.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, lock.ErrClosed)
		time.Sleep(time.Hour)
	})
}

func TestPairGrantIsUsable(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second
	for name, slowness := range map[string]func(s [2]*slow, first *faultlock.Faults){
		"the second answers late": func(s [2]*slow, _ *faultlock.Faults) {
			s[1].delay(faultlock.OpTry, 0, ttl*6/10)
			s[0].delay(faultlock.OpRenew, 0, ttl/10)
		},
		"and the first is not renewed": func(s [2]*slow, first *faultlock.Faults) {
			s[0].delay(faultlock.OpTry, 0, ttl/10)
			s[1].delay(faultlock.OpTry, 0, ttl*6/10)
			first.All(faultlock.Drop(), faultlock.OpRenew)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var stores [2]*memlock.Store
				var slows [2]*slow
				var sides [2]lock.Locker
				for i := range sides {
					stores[i] = memlock.NewStore(nil)
					slows[i] = newSlow(t, stores[i])
					c, err := lock.New(slows[i], &lock.Options{TTL: ttl})
					require.NoError(t, err)
					sides[i] = c
				}
				first := slows[0].disturbed()
				p, err := lock.Both(sides[0], sides[1])
				require.NoError(t, err)
				slowness(slows, first)
				for _, opts := range [][]lock.Option{nil, {lock.WithoutRenewal()}} {
					lease, err := p.TryAcquire(t.Context(), "k", opts...)
					if err != nil {
						assert.ErrorIs(t, err, lock.ErrUnavailable)
						time.Sleep(ttl)
						assert.Zero(t, stores[0].Len()+stores[1].Len(), "it is given back")
						continue
					}
					until, ok := lease.Deadline()
					assert.True(t, ok)
					assert.GreaterOrEqual(t, time.Until(until), ttl/3, "with %d options", len(opts))
					assert.NoError(t, lease.Release(t.Context()))
				}
				first.Heal()
				require.NoError(t, p.Close())
				time.Sleep(time.Hour)
			})
		})
	}
}
