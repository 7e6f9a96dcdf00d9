package lock_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
	memlock "github.com/mortiselock/lock/memory"
)

// slowToReturn is a backend whose requests for a grant return only after their context
// has ended, and some time more.
type slowToReturn struct {
	backend.Backend
	after    time.Duration
	err      error
	releases *atomic.Int64
}

func (s slowToReturn) Try(ctx context.Context, _ backend.Request) (backend.Grant, error) {
	<-ctx.Done()
	time.Sleep(s.after)
	return backend.Grant{}, fmt.Errorf("%w: %w", s.err, ctx.Err())
}

func (s slowToReturn) Release(ctx context.Context, h backend.Hold) error {
	s.releases.Add(1)
	return s.Backend.Release(ctx, h)
}

// What was never sent is not cleaned up, and what may have been sent is.
func TestWhatWasNotSentNeedsNoCleanUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		after    time.Duration
		err      error
		releases bool
	}{
		"not sent":                {0, backend.ErrNotSent, false},
		"not sent, and late":      {5 * time.Millisecond, backend.ErrNotSent, false},
		"not sent, and very late": {time.Second, backend.ErrNotSent, true},
		"unknown":                 {0, backend.ErrOutcomeUnknown, true},
		"unknown, and late":       {5 * time.Millisecond, backend.ErrOutcomeUnknown, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)})
				require.NoError(t, err)
				var releases atomic.Int64
				l, err := lock.New(slowToReturn{m, c.after, c.err, &releases}, nil)
				require.NoError(t, err)
				for _, get := range []func(context.Context, string, ...lock.Option) (lock.Lease, error){l.TryAcquire, l.Acquire} {
					releases.Store(0)
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					_, err = get(ctx, "k")
					cancel()
					require.ErrorIs(t, err, context.DeadlineExceeded)
					time.Sleep(3 * time.Second)
					require.Equal(t, c.releases, releases.Load() > 0)
				}
				require.NoError(t, l.Close())
			})
		})
	}
}

// A server that can't be asked in time is unavailable; the caller has not given up.
func TestWhatCouldNotBeSentInTimeIsUnavailable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)})
		require.NoError(t, err)
		var releases atomic.Int64
		l, err := lock.New(slowToReturn{m, 0, backend.ErrNotSent, &releases}, nil)
		require.NoError(t, err)
		_, err = l.TryAcquire(context.Background(), "k")
		require.ErrorIs(t, err, lock.ErrUnavailable)
		require.NotErrorIs(t, err, lock.ErrOutcomeUnknown)
		require.Zero(t, releases.Load())
		require.NoError(t, l.Close())
	})
}

// lateArrivals is a backend whose first request for a grant gets no answer and reaches the
// server late.
type lateArrivals struct {
	backend.Backend
	after    time.Duration // the end of its call
	tries    *atomic.Int64
	releases *atomic.Int64
}

func (b lateArrivals) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if b.tries.Add(1) > 1 {
		return b.Backend.Try(ctx, req)
	}
	<-ctx.Done()
	time.AfterFunc(b.after, func() { _, _ = b.Backend.Try(context.Background(), req) })
	return backend.Grant{}, fmt.Errorf("%w: %w", backend.ErrOutcomeUnknown, ctx.Err())
}

func (b lateArrivals) Release(ctx context.Context, h backend.Hold) error {
	b.releases.Add(1)
	return b.Backend.Release(ctx, h)
}

// A request that reaches the server after its clean-up keeps the key for about as long as it
// was late, and not for a TTL.
func TestLateArrivalsAreLookedFor(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second
	for _, after := range []time.Duration{time.Millisecond, 200 * time.Millisecond, time.Second, 5 * time.Second, 14 * time.Second} {
		t.Run(after.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore(nil)
				m, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: store})
				require.NoError(t, err)
				var tries, releases atomic.Int64
				l, err := lock.New(lateArrivals{m, after, &tries, &releases}, &lock.Options{TTL: ttl})
				require.NoError(t, err)
				other, err := memlock.New(t.Context(), &memlock.Options{Store: store})
				require.NoError(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err = l.TryAcquire(ctx, "k")
				require.ErrorIs(t, err, lock.ErrOutcomeUnknown)
				time.Sleep(after + 100*time.Microsecond)
				_, err = other.TryAcquire(t.Context(), "k")
				require.ErrorIs(t, err, lock.ErrHeld, "it has arrived")
				time.Sleep(after + 251*time.Millisecond)
				lease, err := other.TryAcquire(t.Context(), "k")
				require.NoError(t, err)
				require.NoError(t, lease.Release(t.Context()))
				time.Sleep(2 * ttl)
				require.LessOrEqual(t, releases.Load(), int64(8))
				require.NoError(t, l.Close())
				require.NoError(t, other.Close())
			})
		})
	}
}

// Close does not wait until nothing can arrive any more, and ends the search.
func TestCloseEndsTheSearchForLateArrivals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)})
		require.NoError(t, err)
		var tries, releases atomic.Int64
		l, err := lock.New(lateArrivals{m, time.Hour, &tries, &releases}, nil)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = l.TryAcquire(ctx, "k")
		require.ErrorIs(t, err, lock.ErrOutcomeUnknown)
		start := time.Now()
		require.NoError(t, l.Close())
		require.Less(t, time.Since(start), 100*time.Millisecond)
		closed := releases.Load()
		time.Sleep(time.Minute)
		require.Equal(t, closed, releases.Load())
	})
}

// What the server has answered is not looked for.
func TestAnsweredRequestsAreNotLookedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore(nil)
		s := newSlow(t, store)
		holder, err := memlock.New(t.Context(), &memlock.Options{Store: store})
		require.NoError(t, err)
		held, err := holder.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		var releases atomic.Int64
		l, err := lock.New(countReleases{s, &releases}, nil)
		require.NoError(t, err)
		s.delay(faultlock.OpTry, 0, 5*time.Millisecond) // it answers while the clean-up waits a moment
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err = l.TryAcquire(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(time.Minute)
		require.LessOrEqual(t, releases.Load(), int64(1))
		require.NoError(t, held.Release(t.Context()))
		require.NoError(t, l.Close())
		require.NoError(t, holder.Close())
	})
}

type countReleases struct {
	*slow
	releases *atomic.Int64
}

func (c countReleases) Release(ctx context.Context, h backend.Hold) error {
	c.releases.Add(1)
	return c.slow.Release(ctx, h)
}
