package mysqllock

import (
	"context"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

// An account that may not end the holder's connection may revoke its hold: the holder
// is told that it was taken over, and nobody is let in before it has given the row up.
func TestRowRevokeByAnotherAccount(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := adminOf(t, s)
		run(t, admin, "CREATE USER IF NOT EXISTS row_revoker@'%' IDENTIFIED BY 'revoker-row'")
		run(t, admin, "GRANT SELECT, INSERT, UPDATE ON mortise.* TO row_revoker@'%'")
		l, b := rowLockerOn(t, s, nil), rowBackendOn(t, s, nil)
		key := uniqueKey(t)
		// Long enough for no heartbeat to come before the one that is asked for.
		lease, err := l.Acquire(t.Context(), key, lock.WithTTL(time.Minute))
		require.NoError(t, err)
		stranger, err := NewRowBackend(t.Context(), rowConnector(t, s, func(c *mysql.Config) {
			c.User, c.Passwd = "row_revoker", "revoker-row"
		}), nil)
		require.NoError(t, err)
		defer stranger.Close()
		require.NoError(t, stranger.(backend.Revoker).Revoke(t.Context(), key, lease.Token()))
		_, err = b.Try(t.Context(), request(key))
		require.ErrorIs(t, err, backend.ErrHeld, "the holder does not know yet")
		require.ErrorIs(t, lease.Renew(t.Context()), lock.ErrTakenOver)
		require.ErrorIs(t, ended(t, lease), lock.ErrTakenOver)
		next, err := l.Acquire(short(t, patience), key)
		require.NoError(t, err)
		require.ErrorIs(t, b.Revoke(t.Context(), key, lease.Token()), backend.ErrNotHeld)
		require.NoError(t, next.Renew(t.Context()), "the mark of an earlier hold concerns nobody else")
		require.NoError(t, next.Release(t.Context()))
	})
}

// A holder whose connection was ended by force is told so, and that it was taken over.
func TestRowForceReleaseIsTold(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		l, b := rowLockerOn(t, s, nil), rowBackendOn(t, s, nil)
		lease, err := l.Acquire(t.Context(), uniqueKey(t), lock.WithTTL(6*time.Second))
		require.NoError(t, err)
		require.NoError(t, b.ForceRelease(t.Context(), lease.Key(), lease.Token()))
		require.ErrorIs(t, ended(t, lease), lock.ErrTakenOver)
		next, err := l.TryAcquire(t.Context(), lease.Key())
		require.NoError(t, err)
		require.NoError(t, next.Release(t.Context()))
	})
}

// The work of InTx is given up at the next heartbeat, and nothing of it is committed.
func TestRowRevokeDuringTx(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := adminOf(t, s)
		table := workTable(t, admin)
		l, b := rowLockerOn(t, s, nil), rowBackendOn(t, s, nil)
		lease, err := l.Acquire(t.Context(), uniqueKey(t), lock.WithTTL(6*time.Second))
		require.NoError(t, err)
		err = InTx(t.Context(), lease, func(ctx context.Context, tx Tx) error {
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
		assert.Zero(t, number(t, admin, "SELECT n FROM "+table+" WHERE id = 1"))
	})
}

// A forced release during a statement of InTx, between two, and before the commit is the
// cause that all of them tell.
func TestRowForceReleaseDuringTx(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := adminOf(t, s)
		table := workTable(t, admin)
		l, b := rowLockerOn(t, s, nil), rowBackendOn(t, s, nil)
		update := func(ctx context.Context, tx Tx, what string) error {
			_, err := tx.ExecContext(ctx, "UPDATE "+table+" SET n = n + 1 + "+what+" WHERE id = 1")
			return err
		}
		for name, work := range map[string]func(ctx context.Context, tx Tx, force func()) error{
			"during a statement": func(ctx context.Context, tx Tx, force func()) error {
				ended := make(chan error, 1)
				go func() { ended <- update(ctx, tx, "SLEEP(100)") }()
				underWay(t, admin, "UPDATE "+table)
				force()
				err := <-ended
				assert.ErrorIs(t, err, lock.ErrTakenOver)
				assert.ErrorIs(t, update(t.Context(), tx, "0"), lock.ErrTakenOver, "the next one says so too")
				return err
			},
			"before a statement": func(ctx context.Context, tx Tx, force func()) error {
				force()
				return update(ctx, tx, "0")
			},
			"before the commit": func(_ context.Context, _ Tx, force func()) error {
				force()
				return nil
			},
		} {
			lease, err := l.Acquire(t.Context(), uniqueKey(t), lock.WithTTL(time.Minute))
			require.NoError(t, err)
			err = InTx(t.Context(), lease, func(ctx context.Context, tx Tx) error {
				require.NoError(t, update(ctx, tx, "0"))
				return work(ctx, tx, func() { assert.NoError(t, b.ForceRelease(context.Background(), lease.Key(), lease.Token())) })
			})
			assert.ErrorIs(t, err, lock.ErrTakenOver, name)
			assert.Zero(t, number(t, admin, "SELECT n FROM "+table+" WHERE id = 1"), name)
		}
	})
}
