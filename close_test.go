package lock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
	memlock "github.com/mortiselock/lock/memory"
)

// closing notes what is called after Close.
type closing struct {
	*slow
	closed atomic.Bool
	after  atomic.Int32
	busy   atomic.Int32
}

func (c *closing) use() func() {
	if c.closed.Load() {
		c.after.Add(1)
	}
	c.busy.Add(1)
	return func() { c.busy.Add(-1) }
}

func (c *closing) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	defer c.use()()
	return c.slow.Try(ctx, req)
}

func (c *closing) Release(ctx context.Context, h backend.Hold) error {
	defer c.use()()
	return c.slow.Release(ctx, h)
}

func (c *closing) Close() error {
	c.after.Add(c.busy.Load())
	c.closed.Store(true)
	return nil
}

func TestCloseWaitsForAReleaseUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &closing{slow: newSlow(t, memlock.NewStore(nil))}
		l, err := lock.New(c, nil)
		require.NoError(t, err)
		lease, err := l.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		c.delay(faultlock.OpRelease, time.Second, 0)
		go lease.Release(t.Context())
		synctest.Wait()
		require.NoError(t, l.Close())
		assert.Zero(t, c.after.Load(), "the backend was closed under a call")
		time.Sleep(time.Minute)
	})
}

func TestNothingIsSentAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &closing{slow: newSlow(t, memlock.NewStore(nil))}
		l, err := lock.New(c, nil)
		require.NoError(t, err)
		lease, err := l.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		c.delay(faultlock.OpRelease, time.Hour, 0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, lease.Release(ctx), lock.ErrOutcomeUnknown)
		require.ErrorIs(t, l.Close(), lock.ErrOutcomeUnknown)
		time.Sleep(2 * time.Hour)
		c.after.Store(0)
		err = lease.Release(t.Context())
		require.ErrorIs(t, err, lock.ErrClosed)
		assert.Zero(t, c.after.Load())
		time.Sleep(2 * time.Hour)
	})
}

func TestGrantUnderWayAtCloseIsGivenBack(t *testing.T) {
	onSlow(t, func(t *testing.T, s *slow, a, b lock.Locker) {
		s.delay(faultlock.OpTry, time.Second, time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		errs := make(chan error, 1)
		go func() {
			_, err := a.Acquire(ctx, "k", lock.WithTTL(time.Hour))
			errs <- err
		}()
		synctest.Wait()
		start := time.Now()
		require.NoError(t, a.Close())
		require.ErrorIs(t, <-errs, lock.ErrClosed)
		assert.LessOrEqual(t, time.Since(start), 5*time.Second)
		time.Sleep(3 * time.Second)
		l, err := b.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		require.NoError(t, l.Release(t.Context()))
	})
}

// hung does not answer before the context of the call ends.
type hung struct{ backend.Backend }

func (h hung) Try(ctx context.Context, _ backend.Request) (backend.Grant, error) {
	<-ctx.Done()
	return backend.Grant{}, ctx.Err()
}

func (h hung) Clock() backend.Clock { return backend.RuntimeClock() }

func TestCloseEndsCallsThatCannotBeCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)})
		require.NoError(t, err)
		l, err := lock.New(hung{b}, nil)
		require.NoError(t, err)
		errs := make(chan error, 2)
		start := time.Now()
		go func() {
			_, err := l.Acquire(context.Background(), "k", lock.WithTTL(time.Hour))
			errs <- err
		}()
		go func() {
			_, err := l.TryAcquire(context.Background(), "k", lock.WithTTL(time.Hour))
			errs <- err
		}()
		time.Sleep(time.Second)
		require.NoError(t, l.Close())
		require.ErrorIs(t, <-errs, lock.ErrClosed)
		require.ErrorIs(t, <-errs, lock.ErrClosed)
		assert.Equal(t, time.Second, time.Since(start))
	})
}
