package row

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	memlock "github.com/mortiselock/lock/memory"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// inTx is what a test of InTx needs.
type inTx struct {
	t     *testing.T
	admin *sql.DB
	l     lock.Locker
	key   string
	table string

	renewed <-chan lock.Event
}

func onBothInTx(t *testing.T, f func(t *testing.T, x *inTx)) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := mysqltest.AdminPool(t, s)
		observer, renewed := mysqltest.Renewals()
		l := lockerOn(t, s, Options{}, lock.Options{Observer: observer})
		l.Backend().(*Backend).atOnce = time.Hour
		x := &inTx{t: t, admin: admin, l: l, key: backendtest.UniqueKey(t), table: mysqltest.WorkTable(t, admin), renewed: renewed}
		require.NoError(t, x.lease(mysqltest.TTL).Release(t.Context())) // the next one has no savepoint before InTx
		f(t, x)
	})
}

func (x *inTx) lease(ttl time.Duration, opts ...lock.Option) lock.Lease {
	x.t.Helper()
	lease, err := x.l.Acquire(backendtest.Short(x.t, mysqltest.Patience), x.key, append(opts, lock.WithTTL(ttl))...)
	require.NoError(x.t, err)
	return lease
}

func (x *inTx) isMariaDB() bool {
	x.t.Helper()
	return mysqltest.Number(x.t, x.admin, "SELECT VERSION() LIKE '%MariaDB%'") == 1
}

// n is what was committed.
func (x *inTx) n() int {
	x.t.Helper()
	return mysqltest.Number(x.t, x.admin, "SELECT n FROM "+x.table+" WHERE id = 1")
}

func (x *inTx) add(ctx context.Context, tx *Tx) error {
	_, err := tx.ExecContext(ctx, "UPDATE "+x.table+" SET n = n + ? WHERE id = 1", 1)
	return err
}

// over requires that the lease has ended and the key is free.
func (x *inTx) over(lease lock.Lease) {
	x.t.Helper()
	require.Error(x.t, lease.Context().Err())
	assert.ErrorIs(x.t, lease.Release(x.t.Context()), lock.ErrNotHeld)
	next := x.lease(30 * time.Second)
	assert.Greater(x.t, next.Token(), lease.Token())
	require.NoError(x.t, next.Release(x.t.Context()))
}

func TestInTxCommits(t *testing.T) {
	onBothInTx(t, func(t *testing.T, x *inTx) {
		const ttl = 4 * time.Second
		lease := x.lease(ttl)
		err := InTx(t.Context(), lease, func(ctx context.Context, tx *Tx) error {
			begun := time.Now()
			added := 0
			for ; time.Since(begun) < ttl; added++ { // heartbeats in between keep the lease
				if err := x.add(ctx, tx); err != nil {
					return err
				}
				select {
				case <-x.renewed: // one that fails is no loss
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			if _, err := tx.ExecContext(ctx, "UPDATE "+x.table+" SET n = n + ? WHERE id = 1", 3-added); err != nil {
				return err
			}
			var n int
			if err := first(tx.QueryContext(ctx, "SELECT n FROM "+x.table+" WHERE id = ?", 1))(&n); err != nil {
				return err
			}
			assert.Equal(t, 3, n)
			assert.Zero(t, x.n(), "not committed yet")
			rows, err := tx.QueryContext(ctx, "SELECT id, n FROM "+x.table+" ORDER BY id")
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, "SELECT 1")
			assert.ErrorIs(t, err, backend.ErrInvalid, "rows are open")
			var ids []int
			for rows.Next() {
				var id int
				if err := rows.Scan(&id, &n); err != nil {
					return err
				}
				ids = append(ids, id)
			}
			assert.Equal(t, []int{1, 2}, ids)
			assert.ErrorIs(t, first(tx.QueryContext(ctx, "SELECT 1 FROM "+x.table+" WHERE id = 77"))(&n), sql.ErrNoRows)
			_, err = tx.ExecContext(ctx, "INSERT INTO "+x.table+" VALUES (1, 1)")
			assert.EqualValues(t, wire.CodeDuplicate, wire.CodeOf(err))
			_, err = tx.ExecContext(ctx, "SELEKT")
			assert.EqualValues(t, 1064, wire.CodeOf(err))
			_, err = tx.ExecContext(ctx, "UPDATE "+x.table+" SET n = ?", make(chan int))
			assert.Error(t, err)
			return rows.Err()
		})
		require.NoError(t, err)
		assert.Equal(t, 3, x.n())
		assert.ErrorIs(t, context.Cause(lease.Context()), lock.ErrReleased)
		x.over(lease)
	})
}

func TestInTxRollsBack(t *testing.T) {
	onBothInTx(t, func(t *testing.T, x *inTx) {
		failure := errors.New("failed")
		lease := x.lease(30 * time.Second)
		var kept *Tx
		err := InTx(t.Context(), lease, func(ctx context.Context, tx *Tx) error {
			kept = tx
			require.NoError(t, x.add(ctx, tx))
			return failure
		})
		require.ErrorIs(t, err, failure)
		assert.NotErrorIs(t, err, lock.ErrLost)
		assert.Error(t, x.add(t.Context(), kept), "the transaction is over")
		x.over(lease)

		lease = x.lease(30 * time.Second)
		assert.PanicsWithValue(t, "oh", func() {
			_ = InTx(t.Context(), lease, func(ctx context.Context, tx *Tx) error {
				require.NoError(t, x.add(ctx, tx))
				panic("oh")
			})
		})
		x.over(lease)

		lease = x.lease(30 * time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		err = InTx(ctx, lease, func(ctx context.Context, tx *Tx) error {
			require.NoError(t, x.add(ctx, tx))
			cancel()
			return nil
		})
		require.ErrorIs(t, err, context.Canceled)
		x.over(lease)

		lease = x.lease(30 * time.Second)
		err = InTx(t.Context(), lease, func(ctx context.Context, tx *Tx) error { // rows are left open
			require.NoError(t, x.add(ctx, tx))
			_, err := tx.QueryContext(ctx, "SELECT id FROM "+x.table)
			require.NoError(t, err)
			return failure
		})
		require.ErrorIs(t, err, failure)
		x.over(lease)

		lease = x.lease(30 * time.Second)
		err = InTx(t.Context(), lease, func(ctx context.Context, tx *Tx) error {
			require.NoError(t, x.add(ctx, tx))
			return lease.Release(t.Context()) // out of turn
		})
		require.ErrorIs(t, err, lock.ErrNotHeld)
		x.over(lease)
		assert.Zero(t, x.n())
	})
}

// When the connection is ended by force, the work ends, nothing is committed, and
// the error says so.
func TestInTxLoss(t *testing.T) {
	onBothInTx(t, func(t *testing.T, x *inTx) {
		lease := x.lease(6 * time.Second)
		err := InTx(t.Context(), lease, func(ctx context.Context, tx *Tx) error {
			require.NoError(t, x.add(ctx, tx))
			mysqltest.Exec(t, x.admin, fmt.Sprintf("KILL CONNECTION %d", connectionOf(t, x.admin, x.key)))
			<-ctx.Done() // by the next heartbeat
			assert.ErrorIs(t, context.Cause(ctx), lock.ErrLost)
			assert.Error(t, x.add(ctx, tx))
			return nil
		})
		require.ErrorIs(t, err, lock.ErrLost)
		x.over(lease)

		lease = x.lease(30 * time.Second)
		err = InTx(t.Context(), lease, func(ctx context.Context, tx *Tx) error {
			require.NoError(t, x.add(ctx, tx))
			mysqltest.Exec(t, x.admin, fmt.Sprintf("KILL CONNECTION %d", connectionOf(t, x.admin, x.key)))
			err := x.add(t.Context(), tx) // a statement notices it too
			assert.ErrorIs(t, err, lock.ErrSessionLost)
			<-ctx.Done()
			return err
		})
		require.ErrorIs(t, err, lock.ErrLost)
		x.over(lease)

		lease = x.lease(30 * time.Second)
		err = InTx(t.Context(), lease, func(ctx context.Context, tx *Tx) error {
			require.NoError(t, x.add(ctx, tx))
			mysqltest.Exec(t, x.admin, fmt.Sprintf("KILL CONNECTION %d", connectionOf(t, x.admin, x.key)))
			return nil // and so does the commit
		})
		require.ErrorIs(t, err, lock.ErrLost)
		x.over(lease)
		assert.Zero(t, x.n())
	})
}

// A statement that takes longer than the lease is a loss, and is ended on the server
// so that the next holder need not wait for it.
func TestInTxLongStatement(t *testing.T) {
	onBothInTx(t, func(t *testing.T, x *inTx) {
		lease := x.lease(3 * time.Second)
		err := InTx(t.Context(), lease, func(ctx context.Context, tx *Tx) error {
			require.NoError(t, x.add(ctx, tx))
			_, err := tx.ExecContext(context.WithoutCancel(ctx), "SELECT SLEEP(600)")
			assert.Error(t, err)
			return nil
		})
		require.ErrorIs(t, err, lock.ErrExpired)
		x.over(lease)
		assert.Zero(t, x.n())
	})
}

// Statements that would end the transaction are refused; what cannot be seen is
// found before the commit.
func TestInTxImplicitCommit(t *testing.T) {
	onBothInTx(t, func(t *testing.T, x *inTx) {
		procedure := x.table + "_ddl"
		mysqltest.Exec(t, x.admin, "CREATE PROCEDURE "+procedure+"() CREATE TABLE IF NOT EXISTS "+x.table+"_new (id INT)")
		t.Cleanup(func() {
			_, _ = x.admin.ExecContext(context.Background(), "DROP PROCEDURE "+procedure)
			_, _ = x.admin.ExecContext(context.Background(), "DROP TABLE "+x.table+"_new")
		})
		lease := x.lease(30 * time.Second)
		err := InTx(t.Context(), lease, func(ctx context.Context, tx *Tx) error {
			require.NoError(t, x.add(ctx, tx))
			_, err := tx.ExecContext(ctx, "ALTER TABLE "+x.table+" ADD COLUMN more INT")
			assert.ErrorIs(t, err, backend.ErrInvalid)
			_, err = tx.ExecContext(ctx, "COMMIT")
			assert.ErrorIs(t, err, backend.ErrInvalid)
			_, err = tx.ExecContext(ctx, "CALL "+procedure+"()")
			return err
		})
		require.ErrorIs(t, err, lock.ErrSessionLost)
		require.ErrorContains(t, err, "commits implicitly")
		x.over(lease)

		lease = x.lease(6 * time.Second) // and by a heartbeat
		err = InTx(t.Context(), lease, func(ctx context.Context, tx *Tx) error {
			_, err := tx.ExecContext(ctx, "CALL "+procedure+"()")
			require.NoError(t, err)
			_ = mysqltest.Ended(t, lease)
			<-ctx.Done()
			return ctx.Err()
		})
		require.ErrorIs(t, err, lock.ErrSessionLost)
		x.over(lease)
	})
}

// Statements that hide what they do get through, and are found before the commit. What
// they have committed stays; what came after them does not.
func TestInTxHiddenCommit(t *testing.T) {
	onBothInTx(t, func(t *testing.T, x *inTx) {
		hidden := map[string][]string{
			"prepared": {"PREPARE hidden FROM 'COMMIT'", "EXECUTE hidden"},
			"rollback": {"PREPARE hidden FROM 'ROLLBACK'", "EXECUTE hidden"},
		}
		if x.isMariaDB() {
			hidden["immediate"] = []string{"EXECUTE IMMEDIATE 'COMMIT'"}
			hidden["for a statement"] = []string{"SET STATEMENT max_statement_time = 5 FOR COMMIT"}
		}
		want := 0
		for name, statements := range hidden {
			lease := x.lease(30 * time.Second)
			err := InTx(t.Context(), lease, func(ctx context.Context, tx *Tx) error {
				require.NoError(t, x.add(ctx, tx))
				for _, q := range statements {
					_, err := tx.ExecContext(ctx, q)
					require.NoError(t, err, q)
				}
				if name != "rollback" {
					want++
				}
				return x.add(ctx, tx) // outside of the lock
			})
			require.ErrorIs(t, err, lock.ErrSessionLost, name)
			require.Equal(t, want, x.n(), name)
			x.over(lease)
		}
	})
}

// Whatever fn returns, the error says that the work has ended the transaction itself, and
// never that it was rolled back: what came before is committed.
func TestInTxSaysThatTheWorkHasCommitted(t *testing.T) {
	onBothInTx(t, func(t *testing.T, x *inTx) {
		procedure := x.table + "_commits"
		mysqltest.Exec(t, x.admin, "CREATE PROCEDURE "+procedure+"() COMMIT")
		t.Cleanup(func() { _, _ = x.admin.ExecContext(context.Background(), "DROP PROCEDURE "+procedure) })
		prepared := []string{"PREPARE hidden FROM 'commit'", "EXECUTE hidden"}
		failure := errors.New("failed")
		for name, c := range map[string]struct {
			statements []string
			heartbeat  bool // finds it
			err        error
		}{
			"prepared":                   {prepared, false, nil},
			"procedure":                  {[]string{"CALL " + procedure + "()"}, false, nil},
			"heartbeat":                  {prepared, true, nil},
			"prepared, and an error":     {prepared, false, failure},
			"procedure, and an error":    {[]string{"CALL " + procedure + "()"}, false, failure},
			"heartbeat, and an error":    {prepared, true, failure},
			"prepared, and its context":  {prepared, false, context.Canceled},
			"heartbeat, and its context": {prepared, true, context.Canceled},
		} {
			before := x.n()
			lease := x.lease(30 * time.Second)
			ctx, cancel := context.WithCancel(t.Context())
			err := InTx(ctx, lease, func(ctx context.Context, tx *Tx) error {
				require.NoError(t, x.add(ctx, tx))
				for _, q := range c.statements {
					_, err := tx.ExecContext(ctx, q)
					require.NoError(t, err, q)
				}
				if c.heartbeat {
					assert.ErrorIs(t, lease.Renew(t.Context()), lock.ErrSessionLost, name)
					<-ctx.Done()
				} else {
					require.NoError(t, x.add(ctx, tx)) // rolled back
				}
				if c.err == context.Canceled {
					cancel()
					return nil
				}
				return c.err
			})
			cancel()
			require.ErrorIs(t, err, lock.ErrLost, name)
			require.ErrorIs(t, err, lock.ErrSessionLost, name)
			if c.err != nil {
				require.ErrorIs(t, err, c.err, name)
			}
			require.ErrorContains(t, err, "the work has ended the transaction itself", name)
			require.ErrorContains(t, err, "may have taken effect", name)
			require.NotContains(t, err.Error(), "rolled back", name)
			require.Equal(t, before+1, x.n(), name)
			x.over(lease)
		}
	})
}

// The connection is ended while a statement is under way, and just before the commit.
func TestInTxKilledDuringAStatement(t *testing.T) {
	onBothInTx(t, func(t *testing.T, x *inTx) {
		lease := x.lease(30 * time.Second)
		err := InTx(t.Context(), lease, func(ctx context.Context, tx *Tx) error {
			require.NoError(t, x.add(ctx, tx))
			id := connectionOf(t, x.admin, x.key)
			ended := make(chan error, 1)
			go func() {
				_, err := tx.ExecContext(ctx, "UPDATE "+x.table+" SET n = n + 1 + SLEEP(100) WHERE id = 1")
				ended <- err
			}()
			mysqltest.UnderWay(t, x.admin, "UPDATE "+x.table)
			_, _ = x.admin.Exec(fmt.Sprintf("KILL CONNECTION %d", id))
			assert.ErrorIs(t, <-ended, lock.ErrSessionLost)
			return nil
		})
		require.ErrorIs(t, err, lock.ErrLost)
		x.over(lease)
		assert.Zero(t, x.n())
	})
}

// A deadlock rolls the transaction back, and the lock with it.
func TestInTxDeadlock(t *testing.T) {
	onBothInTx(t, func(t *testing.T, x *inTx) {
		other, err := x.admin.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = other.Rollback() }()
		// The transaction that has changed more is not chosen.
		_, err = other.Exec("INSERT INTO " + x.table + " VALUES (10, 0), (11, 0), (12, 0), (13, 0), (14, 0)")
		require.NoError(t, err)
		_, err = other.Exec("UPDATE " + x.table + " SET n = 5 WHERE id = 2")
		require.NoError(t, err)
		lease := x.lease(time.Minute)
		err = InTx(t.Context(), lease, func(ctx context.Context, tx *Tx) error {
			require.NoError(t, x.add(ctx, tx))
			var id int
			require.NoError(t, other.QueryRow("SELECT CONNECTION_ID()").Scan(&id))
			done := make(chan error, 1)
			go func() {
				_, err := other.Exec("UPDATE " + x.table + " SET n = 5 WHERE id = 1")
				done <- err
			}()
			mysqltest.WaitsForRow(t, x.admin, id)
			_, err := tx.ExecContext(ctx, "UPDATE "+x.table+" SET n = 6 WHERE id = 2")
			assert.ErrorIs(t, err, lock.ErrSessionLost)
			assert.EqualValues(t, wire.CodeDeadlock, wire.CodeOf(err))
			require.NoError(t, <-done)
			return nil
		})
		require.ErrorIs(t, err, lock.ErrLost)
		require.ErrorContains(t, err, "the transaction was rolled back")
		require.NoError(t, other.Commit())
		x.over(lease)
		assert.Equal(t, 5, x.n())
	})
}

func TestInTxRefuses(t *testing.T) {
	onBothInTx(t, func(t *testing.T, x *inTx) {
		never := func(context.Context, *Tx) error { assert.Fail(t, "called"); return nil }
		assert.ErrorIs(t, InTx(t.Context(), nil, never), backend.ErrInvalid)
		lease := x.lease(30*time.Second, lock.WithOwner("me"))
		assert.ErrorIs(t, InTx(t.Context(), lease, never), backend.ErrUnsupported)
		require.NoError(t, lease.Context().Err())
		require.NoError(t, lease.Release(t.Context()))
		assert.ErrorIs(t, InTx(t.Context(), lease, never), backend.ErrNotHeld)

		lease = x.lease(30 * time.Second)
		assert.ErrorIs(t, InTx(t.Context(), lease, nil), backend.ErrInvalid)
		err := InTx(t.Context(), lease, func(ctx context.Context, tx *Tx) error {
			assert.ErrorIs(t, InTx(ctx, lease, never), backend.ErrInvalid)
			return x.add(ctx, tx)
		})
		require.NoError(t, err)
		assert.Equal(t, 1, x.n())

		mem, err := memlock.New(t.Context(), nil)
		require.NoError(t, err)
		defer mem.Close()
		lease, err = mem.TryAcquire(t.Context(), backendtest.UniqueKey(t))
		require.NoError(t, err)
		assert.ErrorIs(t, InTx(t.Context(), lease, never), backend.ErrUnsupported)
	})
}

func TestTransactionWord(t *testing.T) {
	t.Parallel()
	for query, word := range map[string]string{
		"SELECT 1": "", "  update t set commit = 1": "", "": "", "CALL p()": "", "SET @a = 1": "",
		"/* COMMIT */ SELECT 1": "", "-- COMMIT\nDELETE FROM t": "", "# COMMIT\nDELETE FROM t": "", "/* unclosed COMMIT": "",
		"create temporary table t (id int)": "", "DROP TEMPORARY TABLE t": "", "REPLACE INTO t VALUES (1)": "",
		"COMMIT": "COMMIT", " \n\tcommit and chain": "COMMIT", "rollback": "ROLLBACK", "ROLLBACK TO x": "ROLLBACK",
		"/* x */ /* y */ START TRANSACTION": "START", "begin": "BEGIN", "DROP TABLE t": "DROP", "truncate t": "TRUNCATE",
		"CREATE/**/TABLE t (id int)": "CREATE", "SAVEPOINT a": "SAVEPOINT", "/*!40000 ALTER TABLE t DISABLE KEYS */": "ALTER",
		"/*M!100100 ALTER TABLE t DISABLE KEYS */": "ALTER", "set session AutoCommit = 1": "SET autocommit", "LOCK TABLES t READ": "LOCK",
		"-- x": "", "#": "",
	} {
		assert.Equal(t, word, transactionWord(query), "%q", query)
	}
}

// first reads the only row of a query.
func first(rows *Rows, err error) func(dest ...any) error {
	return func(dest ...any) error {
		if err != nil {
			return err
		}
		defer rows.Close()
		if !rows.Next() {
			return errors.Join(rows.Err(), sql.ErrNoRows)
		}
		return errors.Join(rows.Scan(dest...), rows.Close())
	}
}
