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
	memlock "github.com/mortiselock/lock/backend/memory"
)

func TestHoldOfNamesTheHoldOnTheServer(t *testing.T) {
	personalities(t, func(t *testing.T, store *memlock.Store, open opener) {
		ctx := t.Context()
		a := open()
		first, err := a.Acquire(ctx, "k", lock.WithOwner("me"))
		require.NoError(t, err)
		second, err := a.Acquire(ctx, "k", lock.WithOwner("me"))
		require.NoError(t, err)
		require.NoError(t, first.Release(ctx))
		b, hold, ok := lock.HoldOf(second)
		require.True(t, ok)
		assert.Equal(t, "k", hold.Key)
		assert.Equal(t, second.Token(), hold.Token)
		_, err = b.Renew(ctx, hold)
		require.NoError(t, err, "the server does not know the hold that HoldOf named")
		require.NoError(t, second.Release(ctx))
	})
}

func TestRenewsItself(t *testing.T) {
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
		assert.Equal(t, c.want, lock.RenewsItself(lease))
		require.NoError(t, lease.Release(t.Context()))
	}
	assert.False(t, lock.RenewsItself(struct{ lock.Lease }{}))
}

func TestHoldOfAnotherLease(t *testing.T) {
	t.Parallel()
	_, _, ok := lock.HoldOf(struct{ lock.Lease }{})
	assert.False(t, ok)
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
