package table

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// guardedWrite is what a test of a guarded write needs.
type guardedWrite struct {
	t     *testing.T
	s     *servertest.Server
	db    *sql.DB
	l     lock.Locker
	key   string
	table string
	n     func() int
}

func onBothGuarded(t *testing.T, f func(t *testing.T, g *guardedWrite)) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		table, n := counter(t, db)
		f(t, &guardedWrite{t, s, db, lockerOn(t, db, lock.Options{}), backendtest.UniqueKey(t), table, n})
	})
}

func (g *guardedWrite) lease(ttl time.Duration) lock.Lease {
	g.t.Helper()
	lease, err := g.l.Acquire(backendtest.Short(g.t, mysqltest.Patience), g.key, lock.WithTTL(ttl))
	require.NoError(g.t, err)
	return lease
}

// DDL commits implicitly, and gives the lock of the row up with it. What comes after
// it would be guarded by nothing.
func TestGuardedImplicitCommit(t *testing.T) {
	onBothGuarded(t, func(t *testing.T, g *guardedWrite) {
		lease := g.lease(time.Minute)
		other := mysqltest.OwnTable(t, g.db)
		err := Guarded(t.Context(), lease, func(ctx context.Context, tx *sql.Tx) error {
			require.NoError(t, add(g.table)(ctx, tx))
			_, err := tx.ExecContext(ctx, "CREATE TABLE "+other+" (n INT)")
			require.NoError(t, err)
			return add(g.table)(ctx, tx)
		})
		require.ErrorIs(t, err, lock.ErrOutcomeUnknown)
		require.ErrorContains(t, err, "commits implicitly")
		require.NoError(t, lease.Context().Err(), "the lease goes on")
		require.NoError(t, Guarded(t.Context(), lease, add(g.table)))
		require.NoError(t, lease.Release(t.Context()))
	})
}

// A function that ends the transaction itself is told that nothing is known.
func TestGuardedEndedByTheWork(t *testing.T) {
	onBothGuarded(t, func(t *testing.T, g *guardedWrite) {
		lease := g.lease(time.Minute)
		for _, end := range []func(*sql.Tx) error{(*sql.Tx).Commit, (*sql.Tx).Rollback} {
			err := Guarded(t.Context(), lease, func(ctx context.Context, tx *sql.Tx) error {
				require.NoError(t, add(g.table)(ctx, tx))
				return end(tx)
			})
			require.ErrorIs(t, err, lock.ErrOutcomeUnknown)
			require.ErrorContains(t, err, "itself")
		}
		require.Equal(t, 1, g.n())
		require.NoError(t, lease.Release(t.Context()))
	})
}

// The server rolls a victim of a deadlock back. A function that goes on all the same
// does so outside of the transaction, and is not told that all is well.
func TestGuardedDeadlockPassedOver(t *testing.T) {
	onBothGuarded(t, func(t *testing.T, g *guardedWrite) {
		mysqltest.Exec(t, g.db, "INSERT INTO "+g.table+" VALUES (2, 0), (3, 0), (4, 0), (5, 0), (6, 0)")
		n := func(id int) int {
			return mysqltest.Number(t, g.db, "SELECT n FROM "+g.table+" WHERE id=?", id)
		}
		other, err := g.db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = other.Rollback() }()
		// The transaction that has changed more is not chosen.
		_, err = other.Exec("UPDATE " + g.table + " SET n=5 WHERE id>1")
		require.NoError(t, err)
		lease := g.lease(time.Minute)
		err = Guarded(t.Context(), lease, func(ctx context.Context, tx *sql.Tx) error {
			require.NoError(t, add(g.table)(ctx, tx))
			var id int
			require.NoError(t, other.QueryRow("SELECT CONNECTION_ID()").Scan(&id))
			done := make(chan error, 1)
			go func() {
				_, err := other.Exec("UPDATE " + g.table + " SET n=5 WHERE id=1")
				done <- err
			}()
			mysqltest.WaitsForRow(t, mysqltest.AdminPool(t, g.s), id)
			_, err := tx.ExecContext(ctx, "UPDATE "+g.table+" SET n=6 WHERE id=2")
			assert.EqualValues(t, wire.CodeDeadlock, wire.CodeOf(err))
			require.NoError(t, <-done)
			require.NoError(t, other.Commit())
			return add(g.table)(ctx, tx)
		})
		require.ErrorIs(t, err, lock.ErrOutcomeUnknown)
		require.Equal(t, 5, n(2))
		require.NoError(t, lease.Release(t.Context()))
	})
}

// The connection is ended while the work is under way, and when it is done.
func TestGuardedKilled(t *testing.T) {
	onBothGuarded(t, func(t *testing.T, g *guardedWrite) {
		admin := mysqltest.AdminPool(t, g.s)
		lease := g.lease(time.Minute)
		for _, during := range []bool{true, false} {
			err := Guarded(t.Context(), lease, func(ctx context.Context, tx *sql.Tx) error {
				require.NoError(t, add(g.table)(ctx, tx))
				var id int
				require.NoError(t, tx.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&id))
				_, err := admin.ExecContext(ctx, fmt.Sprintf("KILL CONNECTION %d", id))
				require.NoError(t, err)
				if during {
					return add(g.table)(ctx, tx)
				}
				return nil
			})
			require.Error(t, err)
			require.Zero(t, g.n(), "nothing was committed: %v", err)
			require.NoError(t, lease.Context().Err(), "the lease does not hang on that connection")
		}
		require.NoError(t, Guarded(t.Context(), lease, add(g.table)))
		require.Equal(t, 1, g.n())
		require.NoError(t, lease.Release(t.Context()))
	})
}

// A statement that takes longer than the lease writes nothing, and while the server
// goes on with it, nobody else gets the key.
func TestGuardedLongStatement(t *testing.T) {
	onBothGuarded(t, func(t *testing.T, g *guardedWrite) {
		lease := g.lease(4 * time.Second)
		err := Guarded(t.Context(), lease, func(ctx context.Context, tx *sql.Tx) error {
			require.NoError(t, add(g.table)(ctx, tx))
			_, err := tx.ExecContext(ctx, "UPDATE "+g.table+" SET n=n+1+SLEEP(6) WHERE id=1")
			require.Error(t, err)
			return nil // as if it had not noticed
		})
		require.ErrorIs(t, err, lock.ErrNotHeld)
		next := g.lease(time.Minute)
		require.Zero(t, g.n())
		require.Greater(t, next.Token(), lease.Token())
		require.NoError(t, next.Release(t.Context()))
	})
}

// The end of the goroutine rolls back like a panic, and rows that were left open
// commit nothing without a word.
func TestGuardedCareless(t *testing.T) {
	onBothGuarded(t, func(t *testing.T, g *guardedWrite) {
		lease := g.lease(time.Minute)
		over := make(chan struct{})
		go func() {
			defer close(over)
			_ = Guarded(t.Context(), lease, func(ctx context.Context, tx *sql.Tx) error {
				assert.NoError(t, add(g.table)(ctx, tx))
				runtime.Goexit()
				return nil
			})
		}()
		<-over
		require.Zero(t, g.n())

		err := Guarded(t.Context(), lease, func(ctx context.Context, tx *sql.Tx) error {
			if err := add(g.table)(ctx, tx); err != nil {
				return err
			}
			_, err := tx.QueryContext(ctx, "SELECT id FROM "+g.table+" UNION SELECT 7") //nolint:sqlclosecheck,rowserrcheck // that is the point
			return err
		})
		want := 0
		if err == nil {
			want = 1
		}
		require.Equal(t, want, g.n(), "%v", err)
		var kept *sql.Tx
		require.NoError(t, Guarded(t.Context(), lease, func(ctx context.Context, tx *sql.Tx) error {
			kept = tx
			return add(g.table)(ctx, tx)
		}))
		require.ErrorIs(t, add(g.table)(t.Context(), kept), sql.ErrTxDone)
		require.Equal(t, want+1, g.n())
		require.NoError(t, lease.Release(t.Context()))
	})
}

// The connections of the caller's pool are as they were afterwards, however a guarded
// write ended.
func TestGuardedLeavesTheSessionAlone(t *testing.T) {
	onBothGuarded(t, func(t *testing.T, g *guardedWrite) {
		db := mysqltest.UserPool(t, g.s, "")
		db.SetMaxOpenConns(1)
		l := lockerOn(t, db, lock.Options{})
		state := func() (text string) {
			variable := "transaction_isolation"
			if mysqltest.IsMariaDB(t, g.s) {
				variable = "tx_isolation"
			}
			require.NoError(t, db.QueryRowContext(t.Context(), "SELECT CONCAT_WS(' ', CONNECTION_ID(), @@"+variable+", @@autocommit, @@SESSION.wait_timeout, @@SESSION.innodb_lock_wait_timeout, @mortise_wait, @mortise_rows)").Scan(&text))
			return text
		}
		before := state()
		lease, err := l.TryAcquire(t.Context(), g.key, lock.WithTTL(time.Minute), lock.WithoutRenewal())
		require.NoError(t, err)
		failed := errors.New("no")
		for _, result := range []error{nil, failed} {
			require.ErrorIs(t, Guarded(t.Context(), lease, func(ctx context.Context, tx *sql.Tx) error {
				require.NoError(t, add(g.table)(ctx, tx))
				return result
			}), result)
			require.Equal(t, before, state())
		}
		require.NoError(t, lease.Release(t.Context()))
		require.Equal(t, before, state())
	})
}

// A holder that is cut off, or stopped, in the middle of a guarded write does not keep
// the key for as long as the server lets connections be idle.
func TestGuardedSilence(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		const ttl = 5 * time.Second
		p, db := proxiedPool(t, s, true)
		direct := mysqltest.UserPool(t, s, "")
		l, other := lockerOn(t, db, lock.Options{}), lockerOn(t, direct, lock.Options{})
		table, n := counter(t, direct)
		key := backendtest.UniqueKey(t)
		lease, err := l.TryAcquire(t.Context(), key, lock.WithTTL(ttl))
		require.NoError(t, err)
		var next lock.Lease
		err = Guarded(t.Context(), lease, func(ctx context.Context, tx *sql.Tx) error {
			require.NoError(t, add(table)(ctx, tx))
			p.Freeze()
			defer p.Resume()
			var err error
			next, err = other.Acquire(backendtest.Short(t, mysqltest.Patience), key, lock.WithTTL(time.Minute))
			require.NoError(t, err, "the key was not free within some TTLs")
			require.Error(t, lease.Context().Err(), "the lease had ended before")
			return nil
		})
		require.ErrorIs(t, err, lock.ErrNotHeld)
		require.Zero(t, n(), "nothing was written")
		require.Greater(t, next.Token(), lease.Token())
		require.NoError(t, next.Release(t.Context()))
		require.Error(t, lease.Release(t.Context()))
	})
}

// A lease that is released by another goroutine during the work writes nothing.
func TestGuardedReleasedMeanwhile(t *testing.T) {
	onBothGuarded(t, func(t *testing.T, g *guardedWrite) {
		lease := g.lease(time.Minute)
		released := make(chan error, 1)
		err := Guarded(t.Context(), lease, func(ctx context.Context, tx *sql.Tx) error {
			require.NoError(t, add(g.table)(ctx, tx))
			go func() { released <- lease.Release(context.Background()) }()
			<-ctx.Done()
			return nil
		})
		require.ErrorIs(t, err, lock.ErrNotHeld)
		require.Zero(t, g.n())
		if err := <-released; err != nil {
			require.NotErrorIs(t, err, backend.ErrPermanent)
		}
		require.NoError(t, g.lease(time.Minute).Release(t.Context()))
	})
}

// A server that freezes during the work holds the caller up for no longer than a moment
// after the context has ended, though a renewal was left out meanwhile.
func testGuardedOnFrozenServer(t *testing.T, s, _ *servertest.Server) {
	l := lockerOn(t, mysqltest.UserPool(t, s, ""), lock.Options{})
	lease, err := l.TryAcquire(t.Context(), backendtest.UniqueKey(t), lock.WithTTL(mysqltest.TTL))
	require.NoError(t, err)
	held, err := lock.HeldOn[*Backend](lease)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	err = Guarded(ctx, lease, func(ctx context.Context, _ *sql.Tx) error {
		_, err := held.Backend.Renew(ctx, held.Hold)
		require.NoError(t, err)
		s.Freeze(t)
		cancel()
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, lease.Context().Err(), "it returned before the lease had ended")
	s.Resume(t)
	require.NoError(t, lease.Renew(t.Context()))
	require.NoError(t, lease.Release(t.Context()))
}
