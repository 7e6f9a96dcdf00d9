package lock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	memlock "github.com/mortiselock/lock/memory"
)

// onlooker looks, when the first requests of a kind come after an instant, which leases
// have not been told of their end.
type onlooker struct {
	backend.Backend
	clock  *jumping
	mu     sync.Mutex
	leases []lock.Lease // that are past their deadlines; nil: not yet
	untold map[string]int
	calls  map[string]int
}

func (o *onlooker) called(what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.leases == nil {
		return
	}
	if o.calls[what]++; o.calls[what] > 5 {
		return
	}
	for _, l := range o.leases {
		select {
		case <-l.Context().Done():
		default: // Err would look at the clock
			o.untold[what]++
		}
	}
}

func (o *onlooker) Clock() backend.Clock { return o.clock }

func (o *onlooker) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	o.called("renew")
	return o.Backend.(backend.BatchRenewer).RenewBatch(ctx, holds)
}

func (o *onlooker) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	o.called("renew")
	return o.Backend.Renew(ctx, h)
}

func (o *onlooker) Release(ctx context.Context, h backend.Hold) error {
	o.called("release")
	return o.Backend.Release(ctx, h)
}

// TestContextsEndBeforeAnythingElse: when the deadlines of many leases have passed, no
// clean-up and no renewal begins before the last of their contexts has ended. A clean-up
// costs as much as the ends of a hundred contexts.
func TestContextsEndBeforeAnythingElse(t *testing.T) {
	t.Parallel()
	clock := &jumping{}
	inner, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: memlock.NewStore(clock)})
	require.NoError(t, err)
	o := &onlooker{Backend: inner, clock: clock, untold: map[string]int{}, calls: map[string]int{}}
	l, err := lock.New(o, &lock.Options{TTL: time.Hour})
	require.NoError(t, err)
	var leases []lock.Lease
	for i := range 6000 {
		opts := []lock.Option{lock.WithoutRenewal()}
		if i%2 == 1 {
			opts = nil
		}
		lease, err := l.TryAcquire(t.Context(), fmt.Sprint(i), opts...)
		require.NoError(t, err)
		leases = append(leases, lease)
	}
	for i := range 200 { // their renewals are due when the others end
		_, err := l.TryAcquire(t.Context(), fmt.Sprint("long", i), lock.WithTTL(4*time.Hour))
		require.NoError(t, err)
	}
	o.mu.Lock()
	o.leases = leases
	o.mu.Unlock()
	clock.suspend(90 * time.Minute)
	require.Eventually(t, func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.calls["release"] >= len(leases) && o.calls["renew"] > 0
	}, time.Minute, 10*time.Millisecond)
	assert.Empty(t, o.untold)
	require.NoError(t, l.Close())
}

// What callers do at the end of their lease holds up nobody.
func TestEndsDoNotWaitForCallers(t *testing.T) {
	t.Parallel()
	locker, err := memlock.New(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)})
	require.NoError(t, err)
	const n = 2000
	var ended sync.WaitGroup
	for i := range n {
		lease, err := locker.TryAcquire(t.Context(), fmt.Sprint(i), lock.WithTTL(2*time.Second), lock.WithoutRenewal(), lock.WithMaxHold(time.Second))
		require.NoError(t, err)
		ended.Add(1)
		context.AfterFunc(lease.Context(), func() {
			ended.Done()
			<-t.Context().Done()
		})
	}
	ended.Wait()
	_ = locker.Close() // which says so when five seconds were too short to release them all
}
