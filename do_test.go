package lock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	memlock "github.com/mortiselock/lock/memory"
)

// The work ends with its caller and has what the caller's context carries; the key is free
// when Do has returned, and what the release says is not dropped.
func TestDoEndsWithItsCaller(t *testing.T) {
	type name struct{}
	personalities(t, func(t *testing.T, store *memlock.Store, open opener) {
		a, b := open(), open()
		asked := errors.New("asked to stop")
		ctx, stop := context.WithCancelCause(context.WithValue(t.Context(), name{}, "trace"))
		err := lock.Do(ctx, a, "k", func(ctx context.Context, lease lock.Lease) error {
			assert.Equal(t, "trace", ctx.Value(name{}))
			stop(asked)
			<-ctx.Done()
			assert.NoError(t, lease.Context().Err(), "the hold goes on until the work has ended")
			return context.Cause(ctx)
		})
		require.ErrorIs(t, err, asked)
		lease, err := b.TryAcquire(t.Context(), "k")
		require.NoError(t, err, "the key is free at once")
		require.NoError(t, lease.Release(t.Context()))

		ctx, stop = context.WithCancelCause(t.Context())
		err = lock.Do(ctx, a, "k", func(ctx context.Context, _ lock.Lease) error {
			stop(asked)
			store.Remove("k")
			return nil
		})
		require.ErrorIs(t, err, lock.ErrLost, "what the release says")
		synctest.Wait()
		assert.Zero(t, store.Len())
	})
}
