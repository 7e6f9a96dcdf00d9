package table

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
)

// While the owner of a guarded write has a second hold on its key, the renewals and
// the releases of other leases don't wait for the write, and neither does the renewal of
// the second hold.
func TestGuardedBesideAnotherHold(t *testing.T) {
	onBothGuarded(t, func(t *testing.T, g *guardedWrite) {
		ctx := backendtest.Short(t, mysqltest.Patience)
		first, err := g.l.Acquire(ctx, g.key, lock.WithOwner("o"), lock.WithTTL(time.Minute))
		require.NoError(t, err)
		second, err := g.l.Acquire(ctx, g.key, lock.WithOwner("o"), lock.WithTTL(time.Minute))
		require.NoError(t, err)
		held, err := lock.HeldOn[*Backend](first)
		require.NoError(t, err)
		b, co := held.Backend, held.Hold
		before, _ := backendtest.Granted(t, b, mysqltest.OwnedRequest("a"+g.key, "", time.Minute))
		after, _ := backendtest.Granted(t, b, mysqltest.OwnedRequest("z"+g.key, "", time.Minute))
		require.NoError(t, Guarded(ctx, second, func(ctx context.Context, tx *sql.Tx) error {
			answers := b.RenewBatch(backendtest.Short(t, mysqltest.Patience), []backend.Hold{after, co, before})
			for i, answer := range answers {
				assert.NoError(t, answer.Err)
				assert.Equal(t, i == 1, answer.Validity.For == 0, "what was extended of hold %d: %s", i, answer.Validity.For)
			}
			v, err := b.Renew(backendtest.Short(t, mysqltest.Patience), co)
			assert.NoError(t, err)
			assert.Zero(t, v.For)
			assert.NoError(t, b.Release(backendtest.Short(t, mysqltest.Patience), before))
			assert.NoError(t, b.Release(backendtest.Short(t, mysqltest.Patience), after))
			return add(g.table)(ctx, tx)
		}))
		require.Equal(t, 1, g.n())
		v, err := b.Renew(ctx, co)
		require.NoError(t, err)
		require.NotZero(t, v.For, "afterwards it is extended again")
		require.NoError(t, first.Release(ctx))
		require.NoError(t, second.Release(ctx))
		require.Empty(t, b.guards.keys)
	})
}

// The work of a guarded write that takes its key again, or releases another hold of
// it, would wait for itself: it is told so.
func TestGuardedReentryFromWithin(t *testing.T) {
	onBothGuarded(t, func(t *testing.T, g *guardedWrite) {
		ctx := backendtest.Short(t, mysqltest.Patience)
		own := []lock.Option{lock.WithOwner("o"), lock.WithTTL(time.Minute)}
		first, err := g.l.Acquire(ctx, g.key, own...)
		require.NoError(t, err)
		second, err := g.l.Acquire(ctx, g.key, own...)
		require.NoError(t, err)
		require.NoError(t, Guarded(ctx, second, func(ctx context.Context, tx *sql.Tx) error {
			_, err := g.l.Acquire(ctx, g.key, own...)
			assert.ErrorIs(t, err, lock.ErrUnsupported)
			assert.ErrorContains(t, err, "before or after")
			_, err = g.l.TryAcquire(ctx, g.key, own...)
			assert.ErrorIs(t, err, lock.ErrUnsupported)
			err = first.Release(ctx)
			assert.ErrorIs(t, err, lock.ErrUnsupported)
			other, err := g.l.TryAcquire(ctx, g.key+"2", own...)
			assert.NoError(t, err, "another key")
			assert.NoError(t, other.Release(ctx))
			return add(g.table)(ctx, tx)
		}))
		require.Equal(t, 1, g.n())
		third, err := g.l.Acquire(ctx, g.key, own...)
		require.NoError(t, err)
		require.NoError(t, third.Release(ctx))
		require.NoError(t, second.Release(ctx))
		// The release that was refused is made up for in the background.
		next, err := g.l.Acquire(ctx, g.key)
		require.NoError(t, err)
		require.NoError(t, next.Release(ctx))
	})
}

// Another goroutine that takes the key again waits until the write has ended, without
// a connection.
func TestGuardedReentryBeside(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		db.SetMaxOpenConns(2)
		l := lockerOn(t, db, lock.Options{})
		key := backendtest.UniqueKey(t)
		ctx := backendtest.Short(t, mysqltest.Patience)
		own := []lock.Option{lock.WithOwner("o"), lock.WithTTL(time.Minute)}
		first, err := l.Acquire(ctx, key, own...)
		require.NoError(t, err)
		entered := make(chan error, 1)
		var done bool
		require.NoError(t, Guarded(ctx, first, func(context.Context, *sql.Tx) error {
			go func() {
				second, err := l.Acquire(ctx, key, own...)
				if assert.True(t, done, "it was entered while the write was open") && err == nil {
					err = second.Release(ctx)
				}
				entered <- err
			}()
			b := backendOf(t, first)
			backendtest.Eventually(t, "it waits", func() bool {
				b.guards.mu.Lock()
				defer b.guards.mu.Unlock()
				return b.guards.keys[key].changed != nil
			})
			for range 5 {
				_, err := l.TryAcquire(ctx, key)
				assert.ErrorIs(t, err, lock.ErrHeld, "there is a connection for others")
			}
			_, err := l.TryAcquire(backendtest.Short(t, 20*time.Millisecond), key, own...)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			done = true
			return nil
		}))
		require.NoError(t, <-entered)
		require.NoError(t, first.Release(ctx))
	})
}

func backendOf(t *testing.T, lease lock.Lease) *Backend {
	t.Helper()
	held, err := lock.HeldOn[*Backend](lease)
	require.NoError(t, err)
	return held.Backend
}

// A guarded write waits for the renewals of its key that are under way, so that none
// of them waits for it.
func TestGuardedAfterRenewals(t *testing.T) {
	t.Parallel()
	var g guards
	hold, other := backend.Hold{Key: "k", ID: backend.NewID()}, backend.Hold{Key: "k", ID: backend.NewID()}
	require.True(t, g.renew(other))
	require.ErrorIs(t, g.begin(backendtest.Short(t, 20*time.Millisecond), hold), context.DeadlineExceeded)
	require.True(t, g.renew(hold), "it has not begun")
	g.renewed(hold)
	begun := make(chan error, 1)
	go func() { begun <- g.begin(backendtest.Short(t, mysqltest.Patience), hold) }()
	backendtest.Eventually(t, "it is noted", func() bool { return g.others(other) })
	require.False(t, g.renew(hold))
	require.Empty(t, begun)
	g.renewed(other)
	require.NoError(t, <-begun)
	require.False(t, g.renew(other))
	require.True(t, g.end(hold), "a renewal was left out")
	require.Empty(t, g.keys)
}

// Guarded writes leave connections to the renewals of a pool with a limit, and wait for
// each other.
func TestGuardedLeavesConnections(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		db.SetMaxOpenConns(4)
		l := lockerOn(t, db, lock.Options{})
		ctx := backendtest.Short(t, mysqltest.Patience)
		open, end := make(chan bool), make(chan bool)
		done := make(chan error)
		const most = 3
		leases := make([]lock.Lease, 2*most)
		for i := range leases {
			var err error
			leases[i], err = l.TryAcquire(ctx, backendtest.UniqueKey(t), lock.WithTTL(time.Minute))
			require.NoError(t, err)
		}
		for _, lease := range leases {
			go func() {
				done <- Guarded(ctx, lease, func(context.Context, *sql.Tx) error {
					open <- true
					<-end
					return nil
				})
			}()
		}
		for range most {
			<-open
		}
		// The others wait, and there is a connection for renewals.
		more, err := l.TryAcquire(ctx, backendtest.UniqueKey(t), lock.WithTTL(time.Minute))
		require.NoError(t, err)
		require.NoError(t, more.Renew(ctx))
		err = Guarded(backendtest.Short(t, 50*time.Millisecond), more, func(context.Context, *sql.Tx) error { panic("not reached") })
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, lock.ErrUnavailable)
		require.ErrorContains(t, err, "3 guarded writes")
		require.NoError(t, more.Context().Err())
		for range most {
			end <- true
			require.NoError(t, <-done)
			<-open
		}
		close(end)
		for range most {
			require.NoError(t, <-done)
		}
	})
}

// A guarded write inside of another one does not wait for it.
func TestGuardedNested(t *testing.T) {
	onBothGuarded(t, func(t *testing.T, g *guardedWrite) {
		db := mysqltest.UserPool(t, g.s, "")
		db.SetMaxOpenConns(2)
		l := lockerOn(t, db, lock.Options{})
		outer, err := l.TryAcquire(t.Context(), g.key)
		require.NoError(t, err)
		inner, err := l.TryAcquire(t.Context(), g.key+"2")
		require.NoError(t, err)
		require.NoError(t, Guarded(t.Context(), outer, func(ctx context.Context, tx *sql.Tx) error {
			for _, lease := range []lock.Lease{inner, outer} {
				if err := Guarded(ctx, lease, func(context.Context, *sql.Tx) error { return nil }); err != nil {
					return err
				}
			}
			return add(g.table)(ctx, tx)
		}))
		require.Equal(t, 1, g.n())
		require.NoError(t, inner.Release(t.Context()))
		require.NoError(t, outer.Release(t.Context()))
	})
}
