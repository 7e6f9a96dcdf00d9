package rules_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/internal/engine"
	memlock "github.com/mortiselock/lock/memory"
)

// change makes a mutant of a Locker, and of the backend behind it.
type change = func(m *lockerMutant, b *backend.Backend)

// finished is a Config for a Locker of which no backend is known. The change is made before
// each opening.
func finished(defaultTTL time.Duration, make change) conformance.Config {
	store := memlock.NewStore(nil)
	return conformance.Config{
		TTL: 300 * time.Millisecond, Budget: 5 * time.Second,
		Open: func(ctx context.Context) (lock.Locker, error) {
			b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store})
			if err != nil {
				return nil, err
			}
			faults := faultlock.New(b, nil)
			m, b := &lockerMutant{}, faults.Backend()
			make(m, &b)
			l, err := lock.New(b, &lock.Options{TTL: defaultTTL})
			if err != nil {
				return nil, err
			}
			m.Client, m.close = l, l.Close
			if m.try == nil {
				m.try = l.TryAcquire
			}
			if m.acquire == nil {
				m.acquire = l.Acquire
			}
			return &killable{m, faults}, nil
		},
		Kill: func(l lock.Locker) {
			k := l.(*killable)
			k.faults.All(faultlock.HangBefore())
			time.AfterFunc(time.Minute, func() { _ = k.Close() }) // so that its bubble ends
		},
	}
}

type killable struct {
	*lockerMutant
	faults *faultlock.Faults
}

// unrenewedIf is a Locker that does not renew what is asked for without an option, where the
// condition holds.
func unrenewedIf(m *lockerMutant, condition func(waited bool) bool) {
	m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
		if len(opts) == 0 && condition(false) {
			opts = []lock.Option{lock.WithoutRenewal()}
		}
		return m.Client.TryAcquire(ctx, key, opts...)
	}
	m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
		l, err := m.try(ctx, key, opts...)
		if !errors.Is(err, lock.ErrHeld) {
			return l, err
		}
		if len(opts) == 0 && condition(true) {
			opts = []lock.Option{lock.WithoutRenewal()}
		}
		return m.Client.Acquire(ctx, key, opts...)
	}
}

// remembersKeys is a Locker that keeps what it learnt of each key.
func remembersKeys(m *lockerMutant, b *backend.Backend) {
	*b = apartBackend{*b}
	var known sync.Map
	get := func(get func() engine.Getter) engine.Getter {
		return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			known.Store(key, time.Now())
			return get()(ctx, key, opts...)
		}
	}
	m.try = get(func() engine.Getter { return m.Client.TryAcquire })
	m.acquire = get(func() engine.Getter { return m.Client.Acquire })
}

// apartBackend stands for a server far away, which has texts of its own.
type apartBackend struct{ backend.Backend }

func (a apartBackend) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	req.Key = strings.Clone(req.Key)
	return a.Backend.Try(ctx, req)
}

func (a apartBackend) Release(ctx context.Context, hold backend.Hold) error {
	hold.Key = strings.Clone(hold.Key)
	return a.Backend.Release(ctx, hold)
}

func (a apartBackend) Guarantees() backend.Guarantees {
	g := a.Backend.Guarantees()
	g.Reach = backend.ReachNetwork
	return g
}

// forgetsWithTheLast is a store whose counter of tokens goes when it has had no client for a
// while.
func forgetsWithTheLast(after time.Duration) change {
	var mu sync.Mutex
	var clients int
	var last, base uint64
	var empty time.Time
	return func(_ *lockerMutant, b *backend.Backend) {
		mu.Lock()
		defer mu.Unlock()
		if clients == 0 && !empty.IsZero() && time.Since(empty) > after {
			base = last
		}
		clients++
		*b = counts{*b, func(token uint64) uint64 {
			mu.Lock()
			defer mu.Unlock()
			last = max(last, token)
			return token - base
		}, func() {
			mu.Lock()
			defer mu.Unlock()
			if clients--; clients == 0 {
				empty = time.Now()
			}
		}}
	}
}

type counts struct {
	backend.Backend
	token  func(uint64) uint64
	closed func()
}

func (c counts) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := c.Backend.Try(ctx, req)
	if err == nil {
		g.Token = c.token(g.Token)
	}
	return g, err
}

func (c counts) Close() error {
	defer c.closed()
	return c.Backend.Close()
}

func renewsAllOfAnOwner() change {
	mu, holds := new(sync.Mutex), map[backend.ID]backend.Hold{}
	return func(_ *lockerMutant, b *backend.Backend) { *b = renewsOwner{*b, mu, holds} }
}

// renewsOwner has the renewal of one hold renew all of its owner, whoever made them.
type renewsOwner struct {
	backend.Backend
	mu    *sync.Mutex
	holds map[backend.ID]backend.Hold
}

func (r renewsOwner) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := r.Backend.Try(ctx, req)
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.holds[req.ID] = backend.HoldOf(req)
	}
	return g, err
}

func (r renewsOwner) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	r.mu.Lock()
	holds := slices.Collect(maps.Values(r.holds))
	r.mu.Unlock()
	for _, other := range holds {
		if other.Key == hold.Key && other.Owner == hold.Owner && hold.Owner != "" {
			_, _ = r.Backend.Renew(ctx, other)
		}
	}
	return r.Backend.Renew(ctx, hold)
}

// Mutants that the suite knows by Config.Open alone, as it knows a finished lock.
func TestMutantFinished(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rules  string // empty: it is healthy
		ttl    time.Duration
		change change
	}{
		"healthy":                      {change: func(*lockerMutant, *backend.Backend) {}},
		"healthy, with a long default": {ttl: 30 * time.Second, change: func(*lockerMutant, *backend.Backend) {}},
		"renews nothing for which it waited": {rules: "Defaults", change: func(m *lockerMutant, _ *backend.Backend) {
			unrenewedIf(m, func(waited bool) bool { return waited })
		}},
		"does not renew its default of 30 s": {rules: "Defaults", ttl: 30 * time.Second, change: func(m *lockerMutant, _ *backend.Backend) {
			unrenewedIf(m, func(bool) bool { return true })
		}},
		"an entry for each key": {rules: "NothingKept", change: remembersKeys},
		"half a second without a client, and the tokens begin anew": {rules: "TokenSurvivesLastClose", change: forgetsWithTheLast(500 * time.Millisecond)},
		"one expiry for all holds of an owner":                      {rules: "ExpiryIsPerHold", change: renewsAllOfAnOwner()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ttl := c.ttl
			if ttl == 0 {
				ttl = 300 * time.Millisecond
			}
			cfg := finished(ttl, c.change)
			if c.rules == "" {
				mustPass(t, cfg, "Defaults NothingKept ExpiryIsPerHold ContextEndsFirst TTLGrain AcquireKeepsTTL NoSecretsInErrors TokenSurvivesLastClose")
				return
			}
			mustFail(t, cfg, c.rules)
		})
	}
}
