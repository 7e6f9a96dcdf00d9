package lock_test

import (
	"context"
	"fmt"
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

func TestRenewEndsWithTheHold(t *testing.T) {
	onSlow(t, func(t *testing.T, s *slow, a, b lock.Locker) {
		l, err := a.TryAcquire(t.Context(), "k", lock.WithoutRenewal())
		require.NoError(t, err)
		s.delay(faultlock.OpRenew, time.Hour, 0)
		start := time.Now()
		err = l.Renew(context.Background())
		require.ErrorIs(t, err, lock.ErrNotHeld)
		require.ErrorIs(t, err, lock.ErrExpired)
		assert.LessOrEqual(t, time.Since(start), 6*time.Second)
	})
}

// stuckFor hangs the renewals of some keys.
type stuckFor struct {
	backend.Backend
	stuck func(key string) bool
}

func (s stuckFor) Clock() backend.Clock { return backend.RuntimeClock() }

func (s stuckFor) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	if s.stuck(h.Key) {
		<-ctx.Done()
		return backend.Validity{}, ctx.Err()
	}
	return s.Backend.Renew(ctx, h)
}

func TestRenewalsThatHangDoNotStarveOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)})
		require.NoError(t, err)
		l, err := lock.New(stuckFor{m, func(key string) bool { return key != "good" }}, nil)
		require.NoError(t, err)
		for i := range 100 {
			_, err := l.TryAcquire(t.Context(), fmt.Sprint("k", i), lock.WithTTL(time.Hour))
			require.NoError(t, err)
		}
		good, err := l.TryAcquire(t.Context(), "good", lock.WithTTL(6*time.Second))
		require.NoError(t, err)
		time.Sleep(50 * time.Minute)
		assert.NoError(t, good.Context().Err())
		require.NoError(t, l.Close())
	})
}

func TestReleaseIsRepeatedForAsLongAsTheServerMayHoldTheKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore(nil)
		a, faults := disturbed(t, &memlock.Options{Store: store})
		b, err := memlock.New(t.Context(), &memlock.Options{Store: store})
		require.NoError(t, err)
		lease, err := a.TryAcquire(t.Context(), "k", lock.WithTTL(time.Minute), lock.WithoutRenewal())
		require.NoError(t, err)
		time.Sleep(50 * time.Second)
		faults.Next(1, faultlock.FailAfter(), faultlock.OpRenew)
		require.Error(t, lease.Renew(t.Context()))
		faults.All(faultlock.Drop(), opsRelease...)
		require.ErrorIs(t, lease.Release(t.Context()), lock.ErrOutcomeUnknown)
		time.Sleep(20 * time.Second)
		faults.Heal()
		time.Sleep(5 * time.Second)
		next, err := b.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		require.NoError(t, next.Release(t.Context()))
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}
