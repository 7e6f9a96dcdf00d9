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
	memlock "github.com/mortiselock/lock/memory"
)

// slowRenewals is the backend whose owners are counted by the Locker, with something
// that happens after a renewal was carried out and before its answer comes.
type slowRenewals struct {
	*counted
	slow      atomic.Bool // whether it does
	meanwhile func(ctx context.Context) error
}

func (s *slowRenewals) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	v, err := s.counted.Renew(ctx, h)
	if s.slow.Load() {
		if slow := s.meanwhile(ctx); slow != nil {
			return backend.Validity{}, slow
		}
	}
	return v, err
}

func sleepFor(d time.Duration) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ownerOf takes the key n times for one owner. From then on renewals are slow.
func ownerOf(t *testing.T, s *slowRenewals, n int, options ...lock.Option) (*lock.Client, []lock.Lease) {
	t.Helper()
	l, err := lock.New(s, nil)
	require.NoError(t, err)
	leases := make([]lock.Lease, n)
	for i := range leases {
		leases[i], err = l.TryAcquire(t.Context(), "k", append(options, lock.WithOwner("me"))...)
		require.NoError(t, err)
	}
	s.slow.Store(true)
	return l, leases
}

// Each renewal takes 0.2 s, so that those of 64 holds one by one would take six times
// the TTL.
func TestOwnersHoldsAreRenewedTogetherOnASlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowRenewals{counted: newCounted(t, memlock.NewStore(nil)), meanwhile: sleepFor(200 * time.Millisecond)}
		l, leases := ownerOf(t, s, backend.MaxHolds, lock.WithTTL(2*time.Second))
		time.Sleep(20 * time.Second)
		for _, lease := range leases {
			require.NoError(t, lease.Context().Err())
		}
		s.slow.Store(false)
		for _, lease := range leases {
			require.NoError(t, lease.Release(t.Context()))
		}
		require.NoError(t, l.Close())
	})
}

// Those that wait for a request under way have less time left than their own takes, which is
// almost a third of the TTL.
func TestOwnersLeaseIsKeptOnASlowServer(t *testing.T) {
	for _, n := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			s := &slowRenewals{counted: newCounted(t, memlock.NewStore(nil)), meanwhile: sleepFor(900 * time.Millisecond)}
			l, leases := ownerOf(t, s, n, lock.WithTTL(3*time.Second))
			time.Sleep(time.Minute)
			for _, lease := range leases {
				require.NoError(t, lease.Context().Err(), "%d holds", n)
			}
			s.slow.Store(false)
			require.NoError(t, l.Close())
		})
	}
}

// One renewal that has no answer is not a loss, of an owner's only hold too.
func TestOwnersRenewalThatHangsIsNoLoss(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int32
		s := &slowRenewals{counted: newCounted(t, memlock.NewStore(nil)), meanwhile: func(ctx context.Context) error {
			if sent.Add(1)%3 == 1 {
				<-ctx.Done()
			}
			return ctx.Err()
		}}
		l, leases := ownerOf(t, s, 1, lock.WithTTL(3*time.Second))
		time.Sleep(time.Minute)
		require.NoError(t, leases[0].Context().Err())
		require.NoError(t, l.Close())
	})
}

// A renewal that was on its way before another was asked for says nothing about what
// happened in between.
func TestRenewalIsNotAnsweredByAnEarlierRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore(nil)
		s := &slowRenewals{counted: newCounted(t, store), meanwhile: sleepFor(time.Second)}
		l, leases := ownerOf(t, s, 3, lock.WithoutRenewal())
		first := make(chan error, 1)
		go func() { first <- leases[0].Renew(t.Context()) }()
		time.Sleep(100 * time.Millisecond)
		store.EndSession()
		for _, lease := range leases[1:] {
			require.ErrorIs(t, lease.Renew(t.Context()), lock.ErrNotHeld)
		}
		require.Error(t, <-first)
		require.NoError(t, l.Close())
	})
}

func TestRenewalsThatWaitGoInOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var requests atomic.Int32
		wait := sleepFor(time.Second)
		s := &slowRenewals{counted: newCounted(t, memlock.NewStore(nil)), meanwhile: func(ctx context.Context) error {
			requests.Add(1)
			return wait(ctx)
		}}
		l, leases := ownerOf(t, s, 10, lock.WithoutRenewal())
		answers := make(chan error, len(leases))
		start := time.Now()
		for _, lease := range leases {
			go func() { answers <- lease.Renew(t.Context()) }()
		}
		for range leases {
			require.NoError(t, <-answers)
		}
		assert.LessOrEqual(t, requests.Load(), int32(2))
		for _, lease := range leases {
			deadline, _ := lease.Deadline()
			assert.Greater(t, deadline.Sub(start), lock.DefaultTTL-2*time.Second, "was not extended")
		}
		require.NoError(t, l.Close())
	})
}

// The one that renews for all gives up. The others are renewed by the next of them.
func TestRenewalThatGivesUpLeavesTheOthersTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowRenewals{counted: newCounted(t, memlock.NewStore(nil)), meanwhile: sleepFor(time.Second)}
		l, leases := ownerOf(t, s, 4, lock.WithoutRenewal())
		answers := make(chan error, len(leases))
		renew := func(ctx context.Context, lease lock.Lease) {
			go func() { answers <- lease.Renew(ctx) }()
			synctest.Wait()
		}
		renew(t.Context(), leases[0]) // has the turn for a second
		impatient, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		renew(impatient, leases[1])
		renew(t.Context(), leases[2])
		gone, leave := context.WithCancel(t.Context())
		renew(gone, leases[3])
		leave()
		require.ErrorIs(t, <-answers, context.Canceled, "who gives up while it waits")
		failed := 0
		for range 3 {
			if err := <-answers; err != nil {
				require.ErrorIs(t, err, context.DeadlineExceeded)
				failed++
			}
		}
		require.LessOrEqual(t, failed, 1, "the time of one was taken for that of all")
		for _, lease := range leases {
			require.NoError(t, lease.Context().Err())
		}
		require.NoError(t, l.Close())
	})
}
