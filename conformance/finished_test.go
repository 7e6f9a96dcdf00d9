package conformance_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance"
	memlock "github.com/mortiselock/lock/memory"
)

// finished is a lock as others write them: it waits without a context, has no try,
// renews by itself, and is unlocked by key.
type finished struct {
	l  lock.Locker
	mu sync.Mutex
	is map[string]lock.Lease
}

func (f *finished) Lock(key string) error {
	l, err := f.l.Acquire(context.Background(), key)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.is[key] = l
	return nil
}

func (f *finished) Unlock(key string) error {
	f.mu.Lock()
	l := f.is[key]
	delete(f.is, key)
	f.mu.Unlock()
	if l == nil {
		return errors.New("it is not locked")
	}
	return l.Release(context.Background())
}

// A lock without a try, without a context, unlocked by key, is adapted in a few lines, and
// what the adapter adds passes.
func TestAdapterOfAFinishedLock(t *testing.T) {
	t.Parallel()
	const ttl = 300 * time.Millisecond
	store := memlock.NewStore(nil)
	open := func(ctx context.Context) (lock.Locker, error) {
		b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store})
		if err != nil {
			return nil, err
		}
		faults := faultlock.New(b, nil)
		l, err := lock.New(faults.Backend(), &lock.Options{TTL: ttl})
		if err != nil {
			return nil, err
		}
		f := &finished{l: l, is: map[string]lock.Lease{}}
		return conformance.Adapter{
			TTL: ttl, Renews: true, TryFor: 50 * time.Millisecond,
			Lock: conformance.WithoutContext(
				func(key string, _ time.Duration) (conformance.Handle, error) {
					return conformance.Handle{}, f.Lock(key)
				},
				func(key string, _ conformance.Handle) { _ = f.Unlock(key) }),
			Unlock: func(_ context.Context, key string) error { return f.Unlock(key) },
			Close:  l.Close,
			Stop: func() {
				faults.All(faultlock.HangBefore())
				time.AfterFunc(time.Minute, func() { _ = l.Close() }) // so that its bubble ends
			},
		}.Locker()
	}
	g := backend.Guarantees{Name: "finished", Reach: backend.ReachProcess, MinTTL: ttl, MaxTTL: ttl, Expiry: backend.ClockProcess, Token: backend.TokenNone}
	rep := check(t, conformance.Config{
		Open: open, Kill: conformance.Abandon, Guarantees: &g, TTL: ttl,
	})
	assert.Subset(t, verdicts(rep, conformance.Pass), []string{"Exclusive", "ReleaseTwice", "CrashFrees", "RenewKeeps", "WaiterGivesUp", "UnsupportedIsRefused", "CancelDuring"})
	assert.Empty(t, verdicts(rep, conformance.Inconclusive))
}

// oneTTL is a lock with one TTL that does not say so.
type oneTTL struct{ lock.Locker }

func (o oneTTL) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	if set, _ := lock.ResolveOptions(opts...); set.TTL != 0 && set.TTL != time.Second {
		return nil, lock.ErrUnsupported
	}
	return o.Locker.TryAcquire(ctx, key, opts...)
}

func TestWhoHasOneTTLIsToldHowToSaySo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore(nil)
		rep, err := conformance.Check(t.Context(), conformance.Config{
			Open: func(ctx context.Context) (lock.Locker, error) {
				l, err := memlock.New(ctx, &memlock.Options{Store: store})
				return oneTTL{l}, err
			},
			TTL: time.Second, Budget: time.Second, Only: []string{"CrashFrees"},
		})
		require.NoError(t, err)
		require.Len(t, rep.Results, 1)
		assert.Contains(t, rep.Results[0].Evidence, "in Config.Guarantees: MinTTL and MaxTTL")
	})
}

// A lock that has no try, does not renew, and whose client ends nothing when it is closed,
// declares two subjects. Then nothing of it is accused, and of what the adapter adds neither.
func TestAdapterOfALockThatDoesNotRenew(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	store := memlock.NewStore(nil)
	open := func(ctx context.Context) (lock.Locker, error) {
		b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store})
		if err != nil {
			return nil, err
		}
		l, err := lock.New(b, &lock.Options{TTL: ttl})
		if err != nil {
			return nil, err
		}
		return conformance.Adapter{
			TTL: ttl, MinTTL: 100 * time.Millisecond, MaxTTL: time.Minute, TTLGrain: time.Millisecond,
			Lock: func(ctx context.Context, key string, ttl time.Duration) (conformance.Handle, error) {
				lease, err := l.Acquire(ctx, key, lock.WithTTL(ttl), lock.WithoutRenewal())
				if err != nil {
					return conformance.Handle{}, err
				}
				return conformance.Handle{Release: lease.Release}, nil
			},
		}.Locker()
	}
	g := backend.Guarantees{
		Name: "finished", Reach: backend.ReachProcess, Expiry: backend.ClockProcess, Token: backend.TokenNone,
		MinTTL: 100 * time.Millisecond, MaxTTL: time.Minute, TTLGrain: time.Millisecond, WithoutRenewal: true,
	}
	rep := check(t, conformance.Config{Open: open, Guarantees: &g, TTL: ttl, Deviations: map[string]string{
		"renewal": "leases are not renewed", "close": "there is nothing to close",
	}})
	assert.Empty(t, verdicts(rep, conformance.Fail))
	assert.Empty(t, verdicts(rep, conformance.Inconclusive))
	assert.Subset(t, verdicts(rep, conformance.Pass), []string{"Exclusive", "TryIsImmediate", "ReleaseFrees", "TTLRange", "TTLGrain", "CrashFrees"})
	assert.Subset(t, verdicts(rep, conformance.Deviation), []string{"RenewKeeps", "IdleLockerWorks", "HoldOutlivesAcquireCtx", "ContextEndsFirst"})
}

func TestAdapterNeedsSomething(t *testing.T) {
	t.Parallel()
	_, err := conformance.Adapter{TTL: time.Second}.Locker()
	require.ErrorContains(t, err, "needs Lock or Try")
	_, err = conformance.Adapter{Try: func(context.Context, string, time.Duration) (conformance.Handle, error) {
		return conformance.Handle{}, nil
	}}.Locker()
	require.ErrorContains(t, err, "Adapter.TTL")
}

// What an adapted lease knows of its end is told, whatever the lock says to a call whose
// context has ended.
func TestAdapterTellsTheEnd(t *testing.T) {
	t.Parallel()
	first := func(ctx context.Context) error { return ctx.Err() } // looks at nothing else
	held, lose := context.WithCancel(t.Context())
	l, err := conformance.Adapter{
		TTL: time.Second,
		Try: func(context.Context, string, time.Duration) (conformance.Handle, error) {
			return conformance.Handle{Held: held, Renew: first, Release: first}, nil
		},
	}.Locker()
	require.NoError(t, err)
	lease, err := l.TryAcquire(t.Context(), "key")
	require.NoError(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.NotErrorIs(t, lease.Renew(ended), lock.ErrNotHeld)
	lose()
	<-lease.Context().Done()
	require.ErrorIs(t, lease.Renew(ended), lock.ErrNotHeld)
	require.ErrorIs(t, lease.Release(ended), lock.ErrTakenOver)
	require.ErrorIs(t, lease.Release(t.Context()), lock.ErrLost)
}
