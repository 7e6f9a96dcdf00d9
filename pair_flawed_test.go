package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	memlock "github.com/mortiselock/lock/memory"
)

// pairChecks are what everybody relies on who changes a store by Both. Each gets a pair of
// two stores, and what tells what was asked of them.
var pairChecks = map[string]func(ctx context.Context, p lock.Locker, s *watchedStores) error{
	"order": func(ctx context.Context, p lock.Locker, s *watchedStores) error {
		lease, err := p.TryAcquire(ctx, "k")
		if err != nil {
			return err
		}
		s.leaseEnds(lease)
		if err := lease.Release(ctx); err != nil {
			return err
		}
		if want := []string{"old acquired", "new acquired", "context ended", "new released", "old released"}; !slices.Equal(s.seen(), want) {
			return fmt.Errorf("it went %q; expected %q", s.seen(), want)
		}
		return nil
	},
	"neighbours": func(ctx context.Context, p lock.Locker, s *watchedStores) error {
		for i, alone := range s.lockers {
			lease, err := alone.TryAcquire(ctx, "k")
			if err != nil {
				return err
			}
			if _, err := p.TryAcquire(ctx, "k"); !errors.Is(err, lock.ErrHeld) {
				return fmt.Errorf("the pair says %v while store %d is held", err, i)
			}
			other, err := s.lockers[1-i].TryAcquire(ctx, "k")
			if err != nil {
				return fmt.Errorf("a refused try has left something: %w", err)
			}
			if err := errors.Join(other.Release(ctx), lease.Release(ctx)); err != nil {
				return err
			}
		}
		return nil
	},
	"token": func(ctx context.Context, p lock.Locker, s *watchedStores) error {
		var last uint64
		for i, l := range []lock.Locker{s.lockers[0], p, s.lockers[1], p, s.lockers[0], p} {
			pause := 2 * aheadBy
			if i == 3 {
				pause = aheadBy / 2
			}
			time.Sleep(pause)
			lease, err := l.TryAcquire(ctx, "k")
			if err != nil {
				return err
			}
			if lease.Token() <= last {
				return fmt.Errorf("token %d after %d", lease.Token(), last)
			}
			last = lease.Token()
			if err := lease.Release(ctx); err != nil {
				return err
			}
		}
		return nil
	},
	"clocks": func(ctx context.Context, p lock.Locker, s *watchedStores) error {
		var last uint64
		for range 10 {
			for _, l := range []lock.Locker{s.lockers[0], p} {
				lease, err := l.TryAcquire(ctx, "k")
				if err != nil {
					return err
				}
				if lease.Token() <= last {
					return fmt.Errorf("token %d after %d", lease.Token(), last)
				}
				last = lease.Token()
				if err := lease.Release(ctx); err != nil {
					return err
				}
			}
		}
		return nil
	},
	"loss": func(ctx context.Context, p lock.Locker, s *watchedStores) error {
		for i := range s.stores {
			lease, err := p.TryAcquire(ctx, "k")
			if err != nil {
				return err
			}
			s.stores[i].Remove("k")
			time.Sleep(time.Minute)
			if !errors.Is(context.Cause(lease.Context()), lock.ErrLost) {
				return fmt.Errorf("removed from store %d, a minute later: %v", i, context.Cause(lease.Context()))
			}
			for j, l := range s.lockers {
				other, err := l.TryAcquire(ctx, "k")
				if err != nil {
					return fmt.Errorf("lost in store %d, store %d is still held: %w", i, j, err)
				}
				_ = other.Release(ctx)
			}
			_ = lease.Release(ctx)
		}
		return nil
	},
	"deadline": func(ctx context.Context, p lock.Locker, s *watchedStores) error {
		for i := range s.stores {
			lease, err := p.TryAcquire(ctx, "k", lock.WithoutRenewal())
			if err != nil {
				return err
			}
			time.Sleep(time.Second)
			s.faults[i].All(faultlock.Drop(), faultlock.OpRenew)
			_ = lease.Renew(ctx)
			s.faults[i].Heal()
			until, ok := lease.Deadline()
			if !ok || time.Until(until) > 9*time.Second {
				return fmt.Errorf("not renewed in store %d: deadline in %s (%t)", i, time.Until(until), ok)
			}
			if err := lease.Renew(ctx); err != nil {
				return err
			}
			if until, ok := lease.Deadline(); !ok || time.Until(until) < 9*time.Second {
				return fmt.Errorf("renewed in both: deadline in %s (%t)", time.Until(until), ok)
			}
			_ = lease.Release(ctx)
		}
		return nil
	},
}

// watchedStores are two stores, their Lockers, the faults of these, and what was asked of them.
type watchedStores struct {
	stores  [2]*memlock.Store
	lockers [2]lock.Locker
	faults  [2]*faultlock.Faults

	mu     sync.Mutex
	events []string
}

func (s *watchedStores) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, fmt.Sprintf(format, args...))
}

func (s *watchedStores) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}

// leaseEnds takes note of the end of the context of a lease, as the stores see it: a
// release that comes first finds it alive.
func (s *watchedStores) leaseEnds(l lock.Lease) {
	context.AfterFunc(l.Context(), func() { s.note("context ended") })
}

// watched is one of the Lockers.
type watched struct {
	lock.Locker
	s    *watchedStores
	name string
}

func (w watched) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	l, err := w.Locker.TryAcquire(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	w.s.note("%s acquired", w.name)
	return watchedLease{l, w}, nil
}

// aheadBy is by how much the clock of the new store is ahead of that of the old one.
const aheadBy = time.Millisecond

func (l watchedLease) Token() uint64 {
	if l.w.name == "new" {
		return l.Lease.Token() + uint64(aheadBy.Microseconds())
	}
	return l.Lease.Token()
}

type watchedLease struct {
	lock.Lease
	w watched
}

func (l watchedLease) Release(ctx context.Context) error {
	time.Sleep(time.Microsecond) // what ends has been told
	err := l.Lease.Release(ctx)
	l.w.s.note("%s released", l.w.name)
	return err
}

// naivePair is what people write in place of Both, with one mistake more: it never waits for
// a clock.
type naivePair struct {
	lock.Locker
	sides   [2]lock.Locker
	mistake string
}

func (p naivePair) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	sides := p.sides
	if p.mistake == "the new store first" {
		slices.Reverse(sides[:])
	}
	first, err := sides[0].TryAcquire(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	second, err := sides[1].TryAcquire(ctx, key, opts...)
	switch {
	case err != nil && p.mistake == "one store is enough":
		return first, nil
	case err != nil && p.mistake == "the old store is kept after a refusal":
		return nil, err
	case err != nil:
		return nil, errors.Join(err, first.Release(ctx))
	}
	l := naiveLease{Lease: first, next: second, mistake: p.mistake, watches: &[]func() bool{}}
	l.ctx, l.end = context.WithCancelCause(context.Background())
	for i, side := range []lock.Lease{first, second} {
		if p.mistake == "a loss in the new store is not told" && i == 1 {
			continue
		}
		other := []lock.Lease{second, first}[i]
		*l.watches = append(*l.watches, context.AfterFunc(side.Context(), func() {
			l.end(context.Cause(side.Context()))
			if p.mistake != "after a loss the other store is kept" {
				_ = other.Release(context.Background())
			}
		}))
	}
	return l, nil
}

type naiveLease struct {
	lock.Lease // in the old store
	next       lock.Lease
	mistake    string
	ctx        context.Context
	end        context.CancelCauseFunc
	watches    *[]func() bool // end with the release
}

func (l naiveLease) Context() context.Context { return l.ctx }

func (l naiveLease) Token() uint64 {
	if l.mistake == "the token of the old store" {
		return l.Lease.Token()
	}
	return max(l.Lease.Token(), l.next.Token())
}

func (l naiveLease) Deadline() (time.Time, bool) {
	a, _ := l.Lease.Deadline()
	b, _ := l.next.Deadline()
	if (l.mistake == "the later deadline") == a.After(b) {
		return a, true
	}
	return b, true
}

func (l naiveLease) Renew(ctx context.Context) error {
	if l.mistake == "only the new store is renewed" {
		return l.next.Renew(ctx)
	}
	return errors.Join(l.Lease.Renew(ctx), l.next.Renew(ctx))
}

func (l naiveLease) Release(ctx context.Context) error {
	for _, stop := range *l.watches {
		stop()
	}
	if l.mistake != "freed while the work may go on" {
		l.end(lock.ErrReleased)
	}
	if l.mistake == "the old store is released first" {
		return errors.Join(l.Lease.Release(ctx), l.next.Release(ctx))
	}
	return errors.Join(l.next.Release(ctx), l.Lease.Release(ctx))
}

// TestFlawedPairs: Both keeps what it promises, and the checks fail for pairs that don't.
func TestFlawedPairs(t *testing.T) {
	t.Parallel()
	for mistake, check := range map[string]string{
		"none of ours":                          "",
		"the slower clock is not waited for":    "clocks",
		"the new store first":                   "order",
		"the old store is released first":       "order",
		"freed while the work may go on":        "order",
		"one store is enough":                   "neighbours",
		"the old store is kept after a refusal": "neighbours",
		"the token of the old store":            "token",
		"a loss in the new store is not told":   "loss",
		"after a loss the other store is kept":  "loss",
		"the later deadline":                    "deadline",
		"only the new store is renewed":         "deadline",
	} {
		t.Run(mistake, func(t *testing.T) {
			broken := map[string]error{}
			for name, run := range pairChecks {
				synctest.Test(t, func(t *testing.T) {
					s := &watchedStores{}
					for i, called := range []string{"old", "new"} {
						s.stores[i] = memlock.NewStore(nil)
						c, faults := disturbed(t, &memlock.Options{Store: s.stores[i], Lock: lock.Options{TTL: 10 * time.Second}})
						s.faults[i] = faults
						defer func() {
							_ = c.Close()
							time.Sleep(time.Second) // what a pair does at the end of its leases
						}()
						s.lockers[i] = watched{c, s, called}
					}
					var p lock.Locker = naivePair{sides: s.lockers, mistake: mistake}
					if mistake == "none of ours" {
						both, err := lock.Both(s.lockers[0], s.lockers[1])
						require.NoError(t, err)
						p = both
					}
					if err := run(t.Context(), p, s); err != nil {
						broken[name] = err
					}
				})
			}
			if check == "" {
				require.Empty(t, broken)
				return
			}
			require.Contains(t, broken, check)
			t.Log(broken)
		})
	}
}

// complaining is a Locker with an error of its own at the end.
type complaining struct {
	lock.Locker
	lease, end error
}

func (c complaining) Close() error { return errors.Join(c.Locker.Close(), c.end) }

func (c complaining) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	l, err := c.Locker.TryAcquire(ctx, key, opts...)
	return failingRelease{l, c.lease}, err
}

type failingRelease struct {
	lock.Lease
	err error
}

func (l failingRelease) Release(ctx context.Context) error {
	return errors.Join(l.Lease.Release(ctx), l.err)
}

// TestPairJoinsErrors of both stores, of a release and of the end.
func TestPairJoinsErrors(t *testing.T) {
	t.Parallel()
	var sides [2]lock.Locker
	releases := [2]error{errors.New("old release"), errors.New("new release")}
	ends := [2]error{errors.New("old end"), errors.New("new end")}
	for i := range sides {
		c, err := memlock.New(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)})
		require.NoError(t, err)
		sides[i] = complaining{c, releases[i], ends[i]}
	}
	p, err := lock.Both(sides[0], sides[1])
	require.NoError(t, err)
	lease, err := p.TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	err, end := lease.Release(t.Context()), p.Close()
	for i := range sides {
		require.ErrorIs(t, err, releases[i])
		require.ErrorIs(t, end, ends[i])
	}
}
