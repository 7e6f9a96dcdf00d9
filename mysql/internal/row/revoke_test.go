package row

import (
	"context"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
)

// An account that may not end the holder's connection may revoke its hold: the holder
// is told that it was taken over, and nobody is let in before it has given the row up.
func TestRowRevokeByAnotherAccount(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := mysqltest.AdminPool(t, s)
		mysqltest.Exec(t, admin, "CREATE USER IF NOT EXISTS row_revoker@'%' IDENTIFIED BY 'revoker-row'")
		mysqltest.Exec(t, admin, "GRANT SELECT, INSERT, UPDATE ON mortise.* TO row_revoker@'%'")
		l, b := lockerOn(t, s, Options{}, lock.Options{}), backendOn(t, s, Options{})
		key := backendtest.UniqueKey(t)
		// Long enough for no heartbeat to come before the one that is asked for.
		lease, err := l.Acquire(t.Context(), key, lock.WithTTL(time.Minute))
		require.NoError(t, err)
		stranger, err := New(t.Context(), mysqltest.Connector(t, s, func(c *mysql.Config) {
			c.User, c.Passwd = "row_revoker", "revoker-row"
		}), Options{})
		require.NoError(t, err)
		defer stranger.Close()
		require.NoError(t, stranger.Revoke(t.Context(), key, lease.Token()))
		_, err = b.Try(t.Context(), mysqltest.Request(key))
		require.ErrorIs(t, err, backend.ErrHeld, "the holder does not know yet")
		require.ErrorIs(t, lease.Renew(t.Context()), lock.ErrTakenOver)
		require.ErrorIs(t, mysqltest.Ended(t, lease), lock.ErrTakenOver)
		next, err := l.Acquire(backendtest.Short(t, mysqltest.Patience), key)
		require.NoError(t, err)
		require.ErrorIs(t, b.Revoke(t.Context(), key, lease.Token()), backend.ErrNotHeld)
		require.NoError(t, next.Renew(t.Context()), "the mark of an earlier hold concerns nobody else")
		require.NoError(t, next.Release(t.Context()))
	})
}

// A holder whose connection was ended by force is told so, and that it was taken over.
func TestRowForceReleaseIsTold(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		l, b := lockerOn(t, s, Options{}, lock.Options{}), backendOn(t, s, Options{})
		lease, err := l.Acquire(t.Context(), backendtest.UniqueKey(t), lock.WithTTL(6*time.Second))
		require.NoError(t, err)
		require.NoError(t, b.ForceRelease(t.Context(), lease.Key(), lease.Token()))
		require.ErrorIs(t, mysqltest.Ended(t, lease), lock.ErrTakenOver)
		next, err := l.TryAcquire(t.Context(), lease.Key())
		require.NoError(t, err)
		require.NoError(t, next.Release(t.Context()))
	})
}

// The work of InTx is given up at the next heartbeat, and nothing of it is committed.
func TestRowRevokeDuringTx(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := mysqltest.AdminPool(t, s)
		table := mysqltest.WorkTable(t, admin)
		l, b := lockerOn(t, s, Options{}, lock.Options{}), backendOn(t, s, Options{})
		lease, err := l.Acquire(t.Context(), backendtest.UniqueKey(t), lock.WithTTL(6*time.Second))
		require.NoError(t, err)
		err = InTx(t.Context(), lease, func(ctx context.Context, tx *Tx) error {
			if _, err := tx.ExecContext(ctx, "UPDATE "+table+" SET n = 7 WHERE id = 1"); err != nil {
				return err
			}
			if err := b.Revoke(t.Context(), lease.Key(), lease.Token()); err != nil {
				return err
			}
			<-ctx.Done()
			return context.Cause(ctx)
		})
		require.ErrorIs(t, err, lock.ErrTakenOver)
		assert.Zero(t, mysqltest.Number(t, admin, "SELECT n FROM "+table+" WHERE id = 1"))
	})
}

// A forced release during a statement of InTx, between two, and before the commit is the
// cause that all of them tell.
func TestRowForceReleaseDuringTx(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := mysqltest.AdminPool(t, s)
		table := mysqltest.WorkTable(t, admin)
		l, b := lockerOn(t, s, Options{}, lock.Options{}), backendOn(t, s, Options{})
		update := func(ctx context.Context, tx *Tx, what string) error {
			_, err := tx.ExecContext(ctx, "UPDATE "+table+" SET n = n + 1 + "+what+" WHERE id = 1")
			return err
		}
		for name, work := range map[string]func(ctx context.Context, tx *Tx, force func()) error{
			"during a statement": func(ctx context.Context, tx *Tx, force func()) error {
				ended := make(chan error, 1)
				go func() { ended <- update(ctx, tx, "SLEEP(100)") }()
				mysqltest.UnderWay(t, admin, "UPDATE "+table)
				force()
				err := <-ended
				assert.ErrorIs(t, err, lock.ErrTakenOver)
				assert.ErrorIs(t, update(t.Context(), tx, "0"), lock.ErrTakenOver, "the next one says so too")
				return err
			},
			"before a statement": func(ctx context.Context, tx *Tx, force func()) error {
				force()
				return update(ctx, tx, "0")
			},
			"before the commit": func(_ context.Context, _ *Tx, force func()) error {
				force()
				return nil
			},
		} {
			lease, err := l.Acquire(t.Context(), backendtest.UniqueKey(t), lock.WithTTL(time.Minute))
			require.NoError(t, err)
			err = InTx(t.Context(), lease, func(ctx context.Context, tx *Tx) error {
				require.NoError(t, update(ctx, tx, "0"))
				return work(ctx, tx, func() { assert.NoError(t, b.ForceRelease(context.Background(), lease.Key(), lease.Token())) })
			})
			assert.ErrorIs(t, err, lock.ErrTakenOver, name)
			assert.Zero(t, mysqltest.Number(t, admin, "SELECT n FROM "+table+" WHERE id = 1"), name)
		}
	})
}
