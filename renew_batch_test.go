package lock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	memlock "github.com/mortiselock/lock/memory"
)

// batchingQueue counts the holds of explicit owners in the Locker, renews many
// holds at once, and notes what it was asked for.
type batchingQueue struct {
	backend.Backend
	mu       sync.Mutex
	together int             // holds that were renewed with others
	owned    bool            // one of them had an owner
	renewed  map[string]bool // what requests said of automatic renewal, by key
}

func (b *batchingQueue) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	b.mu.Lock()
	b.renewed[req.Key] = req.Renewed
	b.mu.Unlock()
	return b.Backend.Try(ctx, req)
}

func (b *batchingQueue) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	out := make([]backend.Renewal, len(holds))
	b.mu.Lock()
	b.together += len(holds)
	b.mu.Unlock()
	for i, h := range holds {
		if h.Owner != "" {
			b.mu.Lock()
			b.owned = true
			b.mu.Unlock()
		}
		out[i].Validity, out[i].Err = b.Renew(ctx, h)
	}
	return out
}

func batchingLocker(t *testing.T) (*lock.Client, *batchingQueue) {
	t.Helper()
	inner, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: memlock.NewStore(nil), Queue: true})
	require.NoError(t, err)
	b := &batchingQueue{Backend: inner, renewed: map[string]bool{}}
	l, err := lock.New(b, &lock.Options{TTL: time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l, b
}

func TestBatchesLeaveOutWhatIsCountedHere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, batchesLeaveOutWhatIsCountedHere)
}

func batchesLeaveOutWhatIsCountedHere(t *testing.T) {
	l, b := batchingLocker(t)
	var leases []lock.Lease
	for i := range 100 {
		var opts []lock.Option
		if i%2 == 1 {
			opts = append(opts, lock.WithOwner(fmt.Sprint("owner ", i)))
		}
		lease, err := l.TryAcquire(t.Context(), fmt.Sprint("key ", i), opts...)
		require.NoError(t, err)
		leases = append(leases, lease)
	}
	require.Eventually(t, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.together >= 100
	}, 20*time.Second, time.Millisecond, "holds that are due together are renewed together")
	b.mu.Lock()
	assert.False(t, b.owned, "the holds of an owner live on one hold of the server, and are not renewed past it")
	b.mu.Unlock()
	for _, lease := range leases {
		_ = lease.Release(t.Context())
	}
}

// counts counts requests and renewals.
type counts struct {
	backend.Backend
	mu              sync.Mutex
	requests, holds int
}

func (c *counts) Clock() backend.Clock { return backend.RuntimeClock() }

func (c *counts) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	c.holds += n
}

func (c *counts) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	c.add(1)
	return c.Backend.Renew(ctx, h)
}

func (c *counts) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	c.add(len(holds))
	return c.Backend.(backend.BatchRenewer).RenewBatch(ctx, holds)
}

// TestBatchesAreFull: leases that were taken at different times are renewed together,
// and not much more often than alone.
func TestBatchesAreFull(t *testing.T) {
	t.Parallel()
	for n, least := range map[int]float64{10000: 100, 2000: 64, 100: 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				inner, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)})
				require.NoError(t, err)
				c := &counts{Backend: inner}
				l, err := lock.New(c, &lock.Options{TTL: 15 * time.Second})
				require.NoError(t, err)
				for i := range n {
					_, err := l.TryAcquire(t.Context(), fmt.Sprint(i))
					require.NoError(t, err)
					time.Sleep(5 * time.Second / time.Duration(n))
				}
				time.Sleep(15 * time.Second)
				c.mu.Lock()
				c.requests, c.holds = 0, 0
				c.mu.Unlock()
				time.Sleep(60 * time.Second)
				c.mu.Lock()
				perRequest := float64(c.holds) / float64(c.requests)
				period := 60 * float64(n) / float64(c.holds)
				c.mu.Unlock()
				t.Logf("%d leases: %.1f in a request, each every %.2f s", n, perRequest, period)
				assert.Greater(t, perRequest, least)
				assert.Greater(t, period, 4.5, "a third of the TTL, less a tenth of it at most, is 4.75 s on average")
				require.NoError(t, l.Close())
			})
		})
	}
}

func TestRequestsSayWhetherTheHoldIsRenewed(t *testing.T) {
	t.Parallel()
	l, b := batchingLocker(t)
	for key, opts := range map[string][]lock.Option{"renewed": nil, "not renewed": {lock.WithoutRenewal()}, "limited": {lock.WithMaxHold(time.Minute)}} {
		lease, err := l.TryAcquire(t.Context(), key, opts...)
		require.NoError(t, err)
		require.NoError(t, lease.Release(t.Context()))
	}
	assert.Equal(t, map[string]bool{"renewed": true, "not renewed": false, "limited": true}, b.renewed)
}
