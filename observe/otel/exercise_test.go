package otellock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	memlock "github.com/mortiselock/lock/memory"
	otellock "github.com/mortiselock/lock/observe/otel"
)

// newClient returns a Client that the observer with these options observes, its store, the
// faults before that, and how many calls wait. It renews nothing within a test, so that faults hit what they are for.
func newClient(t *testing.T, opts *otellock.Options) (*lock.Client, *memlock.Store, *faultlock.Faults, *atomic.Int64) {
	t.Helper()
	observe, err := otellock.NewObserver(opts)
	require.NoError(t, err)
	waiting := &atomic.Int64{}
	store := memlock.NewStore(nil)
	b, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: store})
	require.NoError(t, err)
	faults := faultlock.New(b, nil)
	l, err := lock.New(faults.Backend(), &lock.Options{TTL: time.Hour, Observer: func(ctx context.Context, e lock.Event) {
		observe(ctx, e)
		switch e.Kind {
		case lock.EventWaitBegun:
			waiting.Add(1)
		case lock.EventWaitEnded:
			waiting.Add(-1)
		}
	}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l, store, faults, waiting
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, time.Minute, time.Millisecond, what)
}

// exercise has each kind of event happen on a new Client, and most of their outcomes.
// Afterwards two leases are held and a call waits, until the Client is closed.
func exercise(t *testing.T, opts *otellock.Options) *lock.Client {
	t.Helper()
	l, store, faults, waiting := newClient(t, opts)
	ctx := t.Context()
	const label = "nightly"
	acquire := func(key string) lock.Lease {
		lease, err := l.Acquire(ctx, key, lock.WithLabel(label))
		require.NoError(t, err)
		return lease
	}
	// A refusal, a wait that is given up, a hand-over, a renewal, and releases.
	lease := acquire("k")
	_, err := l.TryAcquire(ctx, "k", lock.WithLabel(label))
	require.ErrorIs(t, err, lock.ErrHeld)
	impatient, giveUp := context.WithCancel(ctx)
	ended := make(chan error, 2)
	wait := func(ctx context.Context) {
		lease, err := l.Acquire(ctx, "k", lock.WithLabel(label))
		if err == nil {
			err = lease.Release(ctx)
		}
		ended <- err
	}
	go wait(impatient)
	eventually(t, "a wait", func() bool { return waiting.Load() == 1 })
	giveUp()
	require.ErrorIs(t, <-ended, lock.ErrHeld)
	go wait(ctx)
	eventually(t, "another wait", func() bool { return waiting.Load() == 1 })
	require.NoError(t, lease.Renew(ctx))
	require.NoError(t, lease.Release(ctx))
	require.NoError(t, <-ended)

	// A server that fails, a release that is not confirmed, and a loss.
	lease = acquire("k")
	faults.Next(1, faultlock.Drop(), faultlock.OpRenew)
	assert.Error(t, lease.Renew(ctx))
	faults.Next(1, faultlock.Drop(), faultlock.OpTry)
	_, err = l.TryAcquire(ctx, "other", lock.WithLabel(label))
	require.ErrorIs(t, err, lock.ErrOutcomeUnknown)
	faults.All(faultlock.Drop(), faultlock.OpRelease)
	require.ErrorIs(t, lease.Release(ctx), lock.ErrOutcomeUnknown)
	faults.Heal()
	store.Remove("k")
	lease = acquire("k")
	store.Remove("k")
	require.ErrorIs(t, lease.Renew(ctx), lock.ErrTakenOver)

	// What goes on.
	acquire("held")
	acquire("held too")
	go func() { _, _ = l.Acquire(context.Background(), "held", lock.WithLabel(label)) }()
	eventually(t, "a wait that goes on", func() bool { return waiting.Load() == 1 })
	return l
}
