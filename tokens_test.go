package lock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	memlock "github.com/mortiselock/lock/memory"
)

// byClock is a store whose tokens count from a clock, which is ahead by so much.
type byClock struct {
	backend.Backend
	ahead time.Duration
	none  bool
}

func (b byClock) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := b.Backend.Try(ctx, req)
	g.Token += uint64(b.ahead.Microseconds())
	return g, err
}

func (b byClock) Guarantees() backend.Guarantees {
	g := b.Backend.Guarantees()
	if b.none {
		g.Token = backend.TokenNone
	}
	return g
}

func tokensOf(t *testing.T, wrap func(b backend.Backend) backend.Backend) *lock.Client {
	t.Helper()
	b, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)})
	require.NoError(t, err)
	l, err := lock.New(wrap(b), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func tokenOf(t *testing.T, l *lock.Client, key string) uint64 {
	t.Helper()
	lease, err := l.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	defer func() { require.NoError(t, lease.Release(t.Context())) }()
	return lease.Token()
}

func whole(b backend.Backend) backend.Backend { return b }

func ahead(d time.Duration) func(backend.Backend) backend.Backend {
	return func(b backend.Backend) backend.Backend { return byClock{Backend: b, ahead: d} }
}

func TestCarryTokens(t *testing.T) {
	t.Parallel()
	t.Run("to a store that can be told", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			from, to := tokensOf(t, ahead(time.Hour)), tokensOf(t, whole)
			last := tokenOf(t, from, "k")
			floor, err := lock.CarryTokens(t.Context(), from, to)
			require.NoError(t, err)
			assert.GreaterOrEqual(t, floor, last)
			assert.Greater(t, tokenOf(t, to, "k"), floor)
			assert.Greater(t, tokenOf(t, to, "another key"), floor)
		})
	})
	t.Run("of a key that ran ahead of the clock", func(t *testing.T) {
		t.Parallel()
		for name, released := range map[string]bool{"and is held": false, "and is free": true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					early := &byKey{key: "early", ahead: time.Hour}
					from, to := tokensOf(t, func(b backend.Backend) backend.Backend { early.Backend = b; return early }), tokensOf(t, whole)
					lease, err := from.TryAcquire(t.Context(), "early")
					require.NoError(t, err)
					if released {
						require.NoError(t, lease.Release(t.Context()))
					}
					floor, err := lock.CarryTokens(t.Context(), from, to)
					require.NoError(t, err)
					assert.GreaterOrEqual(t, floor, lease.Token())
					assert.Greater(t, tokenOf(t, to, "k"), lease.Token())
				})
			})
		}
	})
	t.Run("of a key that is held, from a store that tells no more", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			early := &byKey{key: "held", ahead: time.Hour}
			from, to := tokensOf(t, func(b backend.Backend) backend.Backend { early.Backend = b; return onlyLists{early} }), tokensOf(t, whole)
			held, err := from.TryAcquire(t.Context(), "held")
			require.NoError(t, err)
			_, err = lock.CarryTokens(t.Context(), from, to)
			require.NoError(t, err)
			assert.Greater(t, tokenOf(t, to, "k"), held.Token())
		})
	})
	t.Run("to a store whose floor can't be raised", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			from := tokensOf(t, ahead(time.Hour))
			for want, raise := range map[error]func() error{
				lock.ErrInvalid:     func() error { return lock.ErrInvalid },
				lock.ErrUnavailable: func() error { return nil }, // and does not
			} {
				_, err := lock.CarryTokens(t.Context(), from, tokensOf(t, func(b backend.Backend) backend.Backend { return notRaised{b, raise} }))
				require.ErrorIs(t, err, want)
			}
		})
	})
	t.Run("to a clock that is a little behind", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			from, to := tokensOf(t, ahead(2*time.Second)), tokensOf(t, ahead(0))
			floor, err := lock.CarryTokens(t.Context(), from, to)
			require.NoError(t, err)
			assert.Greater(t, tokenOf(t, to, "k"), floor)
			ended, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err = lock.CarryTokens(ended, tokensOf(t, ahead(2*time.Second)), to)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		})
	})
	t.Run("to a clock that is far behind", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			_, err := lock.CarryTokens(t.Context(), tokensOf(t, ahead(time.Hour)), tokensOf(t, ahead(0)))
			require.ErrorIs(t, err, lock.ErrUnsupported)
			assert.ErrorContains(t, err, "behind by 1h0m0s")
		})
	})
	t.Run("without tokens", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			none := tokensOf(t, func(b backend.Backend) backend.Backend { return byClock{Backend: b, none: true} })
			_, err := lock.CarryTokens(t.Context(), none, tokensOf(t, whole))
			require.ErrorIs(t, err, lock.ErrUnsupported)
			_, err = lock.CarryTokens(t.Context(), tokensOf(t, whole), none)
			require.ErrorIs(t, err, lock.ErrUnsupported)
		})
	})
}

// byKey is a store with one key that is ahead.
type byKey struct {
	backend.Backend
	key   string
	ahead time.Duration
	used  bool
}

func (b *byKey) Unwrap() backend.Backend { return b.Backend }

func (b *byKey) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := b.Backend.Try(ctx, req)
	if req.Key == b.key {
		b.used = true
		g.Token += uint64(b.ahead.Microseconds())
	}
	return g, err
}

func (b *byKey) LastToken(ctx context.Context) (uint64, error) {
	t, _ := backend.As[backend.TokenTeller](b.Backend)
	last, err := t.LastToken(ctx)
	if b.used {
		last += uint64(b.ahead.Microseconds())
	}
	return last, err
}

func (b *byKey) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	l, _ := backend.As[backend.Lister](b.Backend)
	return l.List(ctx, prefix, func(r backend.Record) bool {
		if r.Key == b.key {
			r.Token += uint64(b.ahead.Microseconds())
		}
		return visit(r)
	})
}

// onlyLists is a store that finds no other tokens than those that are held.
type onlyLists struct{ *byKey }

func (onlyLists) Unwrap()    {}
func (onlyLists) LastToken() {}

// notRaised is a store whose floor stays where it is.
type notRaised struct {
	backend.Backend
	raise func() error
}

func (n notRaised) RaiseFloor(context.Context, uint64) error { return n.raise() }
