package lock_test

import (
	"bytes"
	"context"
	"runtime/debug"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	memlock "github.com/mortiselock/lock/memory"
)

// where notes on how many calls it was on the goroutine of the test. It waits for nothing
// if it says so.
type where struct {
	backend.Backend
	immediate   bool
	here, calls atomic.Int64
}

func (w *where) Immediate() bool { return w.immediate }

func (w *where) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	w.look()
	return w.Backend.Try(ctx, req)
}

func (w *where) Release(ctx context.Context, h backend.Hold) error {
	w.look()
	return w.Backend.Release(ctx, h)
}

func (w *where) look() {
	w.calls.Add(1)
	if bytes.Contains(debug.Stack(), []byte("takeAndRelease")) {
		w.here.Add(1)
	}
}

// takeAndRelease is looked for on the stack.
func takeAndRelease(ctx context.Context, t *testing.T, locker lock.Locker) {
	lease, err := locker.Acquire(ctx, "k")
	require.NoError(t, err)
	require.NoError(t, lease.Release(ctx))
	lease, err = locker.TryAcquire(ctx, "k")
	require.NoError(t, err)
	require.NoError(t, lease.Release(ctx))
}

// Another goroutine, which the end of a context needs where a request may hang, costs more
// than a request that does not.
func TestImmediateRequestsAreMadeByTheCaller(t *testing.T) {
	t.Parallel()
	for _, immediate := range []bool{true, false} {
		inner, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)})
		require.NoError(t, err)
		w := &where{Backend: inner, immediate: immediate}
		locker, err := lock.New(w, nil)
		require.NoError(t, err)
		takeAndRelease(t.Context(), t, locker) // which ends with the test
		require.NoError(t, locker.Close())
		want := int64(0)
		if immediate {
			want = 4
		}
		assert.EqualValues(t, 4, w.calls.Load())
		assert.Equal(t, want, w.here.Load(), "immediate: %t", immediate)
	}
}
