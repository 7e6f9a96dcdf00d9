package table

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	memlock "github.com/mortiselock/lock/memory"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
)

// counter is a table with one number.
func counter(t *testing.T, db *sql.DB) (table string, read func() int) {
	t.Helper()
	table = mysqltest.OwnTable(t, db)
	mysqltest.Exec(t, db, "CREATE TABLE "+table+" (id INT PRIMARY KEY, n INT NOT NULL) ENGINE=InnoDB")
	mysqltest.Exec(t, db, "INSERT INTO "+table+" VALUES (1, 0)")
	return table, func() (n int) {
		require.NoError(t, db.QueryRowContext(context.Background(), "SELECT n FROM "+table).Scan(&n))
		return n
	}
}

func add(table string) func(context.Context, *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE "+table+" SET n=n+1 WHERE id=1")
		return err
	}
}

func TestGuarded(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		l := lockerOn(t, db, lock.Options{})
		table, n := counter(t, db)
		lease, err := l.TryAcquire(t.Context(), backendtest.UniqueKey(t))
		require.NoError(t, err)
		require.NoError(t, Guarded(t.Context(), lease, add(table)))
		require.Equal(t, 1, n())

		failed := errors.New("no")
		err = Guarded(t.Context(), lease, func(ctx context.Context, tx *sql.Tx) error {
			require.NoError(t, add(table)(ctx, tx))
			return failed
		})
		require.ErrorIs(t, err, failed)
		require.Equal(t, 1, n(), "an error rolls back")
		require.PanicsWithValue(t, "oh", func() {
			_ = Guarded(t.Context(), lease, func(ctx context.Context, tx *sql.Tx) error {
				require.NoError(t, add(table)(ctx, tx))
				panic("oh")
			})
		})
		require.Equal(t, 1, n(), "so does a panic")
		ctx, cancel := context.WithCancel(t.Context())
		err = Guarded(ctx, lease, func(ctx context.Context, tx *sql.Tx) error {
			require.NoError(t, add(table)(ctx, tx))
			cancel()
			return nil
		})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 1, n(), "so does the end of the context")
		require.NoError(t, lease.Context().Err(), "the lease goes on")
		require.NoError(t, Guarded(t.Context(), lease, add(table)))
		require.Equal(t, 2, n())

		require.NoError(t, lease.Release(t.Context()))
		require.ErrorIs(t, Guarded(t.Context(), lease, add(table)), lock.ErrNotHeld)
		require.Equal(t, 2, n())
	})
}

// Nobody takes the key over while a guarded write is open, even when the lease has
// run out, and the write of the old holder then has no effect.
func TestGuardedAgainstTakeover(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		b := tableOn(t, db, Options{})
		l := lockerOn(t, db, lock.Options{})
		table, n := counter(t, db)
		key := backendtest.UniqueKey(t)
		lease, err := l.TryAcquire(t.Context(), key, lock.WithTTL(4*time.Second), lock.WithoutRenewal())
		require.NoError(t, err)
		taken := make(chan error, 1)
		err = Guarded(t.Context(), lease, func(ctx context.Context, tx *sql.Tx) error {
			require.NoError(t, add(table)(ctx, tx))
			_, err := b.Try(t.Context(), mysqltest.Request(key))
			require.ErrorIs(t, err, backend.ErrHeld, "a refusal doesn't wait for the row")
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), lock.ErrLost)
			go func() {
				for {
					_, err := b.Try(t.Context(), mysqltest.Request(key))
					if !errors.Is(err, backend.ErrHeld) {
						taken <- err
						return
					}
				}
			}()
			return nil // as if it had not noticed
		})
		require.ErrorIs(t, err, lock.ErrNotHeld)
		require.NoError(t, <-taken)
		require.Zero(t, n())
	})
}

// A holder whose key was taken, and who has not learned of it, writes nothing.
func TestGuardedAfterTheft(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		b := tableOn(t, db, Options{})
		l := lockerOn(t, db, lock.Options{})
		table, n := counter(t, db)
		lease, err := l.TryAcquire(t.Context(), backendtest.UniqueKey(t), lock.WithTTL(time.Minute), lock.WithoutRenewal())
		require.NoError(t, err)
		require.NoError(t, b.ForceRelease(t.Context(), lease.Key(), lease.Token()))
		require.ErrorIs(t, Guarded(t.Context(), lease, add(table)), lock.ErrNotHeld)
		require.Zero(t, n())
	})
}

// The renewals that come while a guarded write is open neither fail nor wait for it,
// and go on afterwards.
func TestGuardedSuspendsRenewals(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		observer, renewed := mysqltest.Renewals()
		l := lockerOn(t, db, lock.Options{Observer: observer})
		table, n := counter(t, db)
		lease, err := l.TryAcquire(t.Context(), backendtest.UniqueKey(t), lock.WithTTL(6*time.Second))
		require.NoError(t, err)
		held, err := lock.HeldOn[*Backend](lease)
		require.NoError(t, err)
		other, hold := held.Backend, held.Hold
		for range 2 {
			require.NoError(t, Guarded(t.Context(), lease, func(ctx context.Context, tx *sql.Tx) error {
				for len(renewed) > 0 {
					<-renewed // before the write
				}
				v, err := other.Renew(ctx, hold)
				require.NoError(t, err)
				require.Zero(t, v.For)
				for _, r := range other.RenewBatch(ctx, []backend.Hold{hold, hold}) {
					require.NoError(t, r.Err)
					require.Zero(t, r.Validity.For)
				}
				select { // one that was due
				case e := <-renewed:
					require.NoError(t, e.Err)
				case <-ctx.Done():
				}
				require.NoError(t, ctx.Err())
				return add(table)(ctx, tx)
			}))
		}
		require.NoError(t, lease.Context().Err())
		require.Equal(t, 2, n())
		require.NoError(t, lease.Release(t.Context()))
	})
}

func TestGuardedOfAnotherBackend(t *testing.T) {
	t.Parallel()
	require.ErrorIs(t, Guarded(t.Context(), nil, func(context.Context, *sql.Tx) error { panic("not reached") }), lock.ErrInvalid)
	l, err := memlock.New(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	lease, err := l.TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	err = Guarded(t.Context(), lease, func(context.Context, *sql.Tx) error { panic("not reached") })
	require.ErrorIs(t, err, lock.ErrUnsupported)
	require.NoError(t, lease.Release(t.Context()))
	err = Guarded(t.Context(), lease, func(context.Context, *sql.Tx) error { panic("not reached") })
	require.ErrorIs(t, err, lock.ErrNotHeld)
}
