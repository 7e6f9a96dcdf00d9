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

func TestHeldOnNamesTheHoldOnTheServer(t *testing.T) {
	personalities(t, func(t *testing.T, store *memlock.Store, open opener) {
		ctx := t.Context()
		a := open()
		first, err := a.Acquire(ctx, "k", lock.WithOwner("me"))
		require.NoError(t, err)
		second, err := a.Acquire(ctx, "k", lock.WithOwner("me"))
		require.NoError(t, err)
		require.NoError(t, first.Release(ctx))
		held, err := lock.HeldOn[backend.Backend](second)
		require.NoError(t, err)
		assert.Equal(t, "k", held.Hold.Key)
		assert.Equal(t, second.Token(), held.Hold.Token)
		_, err = held.Backend.Renew(ctx, held.Hold)
		require.NoError(t, err, "the server does not know the hold that HeldOn named")
		require.NoError(t, second.Release(ctx))
	})
}

func TestHeldOnTellsWhetherTheLeaseRenewsItself(t *testing.T) {
	t.Parallel()
	l, err := memlock.New(t.Context(), nil)
	require.NoError(t, err)
	defer l.Close()
	for _, c := range []struct {
		opts []lock.Option
		want bool
	}{{nil, true}, {[]lock.Option{lock.WithoutRenewal()}, false}} {
		lease, err := l.TryAcquire(t.Context(), "k", c.opts...)
		require.NoError(t, err)
		held, err := lock.HeldOn[backend.Backend](lease)
		require.NoError(t, err)
		assert.Equal(t, c.want, held.Renewed)
		require.NoError(t, lease.Release(t.Context()))
	}
}

// strange is a lease that somebody else has made around one of a Client.
type strange struct{ lock.Lease }

func TestHeldOnRefusesOtherLeases(t *testing.T) {
	personalities(t, func(t *testing.T, _ *memlock.Store, open opener) {
		lease, err := open().Acquire(t.Context(), "k", lock.WithOwner("me"))
		require.NoError(t, err)
		_, err = lock.HeldOn[backend.Backend](nil)
		require.ErrorIs(t, err, lock.ErrInvalid)
		_, err = lock.HeldOn[backend.Backend](strange{lease})
		require.ErrorIs(t, err, lock.ErrUnsupported)
		_, err = lock.HeldOn[*sessionBound](lease)
		require.ErrorIs(t, err, lock.ErrUnsupported)
		require.ErrorContains(t, err, "memory", "which backend it is on")
		require.NoError(t, lease.Release(t.Context()))
	})
}

// TestHeldOnAfterTheLastRelease: what is counted on this side is known to have ended.
func TestHeldOnAfterTheLastRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := memlock.New(t.Context(), &memlock.Options{Store: memlock.NewStore(backend.RuntimeClock()), Queue: true})
		require.NoError(t, err)
		lease, err := l.Acquire(t.Context(), "k", lock.WithOwner("me"))
		require.NoError(t, err)
		require.NoError(t, lease.Release(t.Context()))
		_, err = lock.HeldOn[backend.Backend](lease)
		require.ErrorIs(t, err, lock.ErrNotHeld)
		require.NoError(t, l.Close())
	})
}

// sessionBound is a server whose holds end with a session, and that refuses every
// release until it is healed.
type sessionBound struct {
	backend.Backend
	healed   chan struct{}
	released chan struct{}
}

func (b *sessionBound) Guarantees() backend.Guarantees {
	g := b.Backend.Guarantees()
	g.EndsWithSession = true
	return g
}

func (b *sessionBound) Clock() backend.Clock { return backend.RuntimeClock() }

func (b *sessionBound) Release(ctx context.Context, hold backend.Hold) error {
	select {
	case <-b.healed:
		defer close(b.released)
		return b.Backend.Release(ctx, hold)
	default:
		return backend.ErrUnavailable
	}
}

func TestCleanUpOfASessionsHoldOutlivesItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: memlock.NewStore(backend.RuntimeClock())})
		require.NoError(t, err)
		b := &sessionBound{inner, make(chan struct{}), make(chan struct{})}
		l, err := lock.New(b, &lock.Options{TTL: time.Second})
		require.NoError(t, err)
		lease, err := l.Acquire(t.Context(), "k")
		require.NoError(t, err)
		require.Error(t, lease.Release(t.Context()))
		time.Sleep(10 * time.Minute)
		close(b.healed)
		<-b.released
		require.NoError(t, l.Close())
	})
}
