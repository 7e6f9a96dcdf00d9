package lock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
			return asked
		})
		require.ErrorIs(t, err, lock.ErrLost, "what the release says")
		require.ErrorIs(t, err, asked, "and the work")
		synctest.Wait()
		assert.Zero(t, store.Len())
	})
}

// Why the hold ended is said once, whether the work says it or not.
func TestDoSaysALossOnce(t *testing.T) {
	personalities(t, func(t *testing.T, store *memlock.Store, open opener) {
		l := open()
		for _, says := range []func(ctx context.Context) error{
			func(ctx context.Context) error { return fmt.Errorf("the report: %w", context.Cause(ctx)) },
			func(context.Context) error { return errors.New("the report") },
			func(context.Context) error { return nil },
		} {
			var lost error
			err := lock.Do(t.Context(), l, "k", func(ctx context.Context, _ lock.Lease) error {
				store.Remove("k")
				<-ctx.Done()
				lost = context.Cause(ctx)
				return says(ctx)
			})
			require.ErrorIs(t, err, lock.ErrLost)
			require.ErrorIs(t, err, lock.ErrNotHeld)
			assert.Equal(t, 1, strings.Count(err.Error(), lost.Error()), "%v", err)
			assert.Contains(t, err.Error(), `"k"`)
		}
	})
}

// The options are those of the acquisition.
func TestDoHandsOptionsOn(t *testing.T) {
	personalities(t, func(t *testing.T, _ *memlock.Store, open opener) {
		a, owner, entered := open(), lock.WithOwner("o"), false
		require.NoError(t, lock.Do(t.Context(), a, "k", func(ctx context.Context, _ lock.Lease) error {
			return lock.TryDo(ctx, a, "k", func(context.Context, lock.Lease) error {
				entered = true
				return nil
			}, owner)
		}, owner))
		assert.True(t, entered)
	})
}

// asleep is a Locker of a process that stood still: the context of its lease has ended by
// the clock, and no timer has run yet.
type asleep struct {
	lock.Locker
	hold *stoodStill
}

func (a asleep) Acquire(context.Context, string, ...lock.Option) (lock.Lease, error) {
	return sleeping{hold: a.hold}, nil
}

type sleeping struct {
	lock.Lease
	hold *stoodStill
}

func (h sleeping) Context() context.Context { return h.hold }

func (h sleeping) Release(context.Context) error { return nil }

type stoodStill struct {
	context.Context
	over bool
}

func (s *stoodStill) Err() error {
	if s.over {
		return lock.ErrExpired
	}
	return nil
}

// The first look of the work tells of the loss.
func TestDoLooksAtTheHold(t *testing.T) {
	t.Parallel()
	hold := &stoodStill{Context: context.Background()}
	require.NoError(t, lock.Do(t.Context(), asleep{hold: hold}, "k", func(ctx context.Context, _ lock.Lease) error {
		require.NoError(t, ctx.Err())
		hold.over = true
		require.Error(t, ctx.Err())
		require.ErrorIs(t, context.Cause(ctx), lock.ErrExpired)
		return nil
	}))
}
