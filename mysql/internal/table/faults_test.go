package table

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
)

// A wait for a row that ends with 1205 is repeated, until the context ends.
func TestLockWaitTimeoutIsNotTheEnd(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "innodb_lock_wait_timeout=1")
		b := tableOn(t, db, Options{})
		hold, _ := backendtest.Granted(t, b, mysqltest.Request(backendtest.UniqueKey(t)))
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		_, err = tx.ExecContext(t.Context(), "UPDATE locks SET note=note WHERE lock_key=?", []byte(hold.Key))
		require.NoError(t, err)

		require.ErrorIs(t, b.Release(backendtest.Short(t, 100*time.Millisecond), hold), context.DeadlineExceeded)
		released := make(chan error, 1)
		start := time.Now()
		go func() { released <- b.Release(t.Context(), hold) }()
		time.AfterFunc(1500*time.Millisecond, func() { _ = tx.Rollback() })
		require.NoError(t, <-released)
		require.Greater(t, time.Since(start), time.Second, "the row was locked for longer than the server waits")
	})
}

// The result is the same whatever the connections of a pool are set to.
func TestSessionsOfUsers(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		for name, params := range mysqltest.StrangeSessions(t, s) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				strange := tableOn(t, mysqltest.UserPool(t, s, params), Options{})
				plain, _ := sharedTable(t, s)
				key := backendtest.UniqueKey(t) + "/äöü 漢字 \\ ' \" ` % "
				holder := backend.Holder{Label: `ü 漢 \ ' "`, Host: "h", PID: 1}
				var last uint64
				for i, c := range []*Backend{strange, plain, strange} {
					other := []*Backend{plain, strange, plain}[i]
					req := mysqltest.OwnedRequest(key, "owner ü", mysqltest.TTL)
					req.Holder = holder
					hold, g := backendtest.Granted(t, c, req)
					require.Greater(t, g.Token, last)
					last = g.Token
					rec, err := other.Inspect(t.Context(), key)
					require.NoError(t, err)
					require.Equal(t, holder.Label, rec.Holder.Label)
					require.Greater(t, rec.Remaining, mysqltest.TTL/2)
					require.LessOrEqual(t, rec.Remaining, mysqltest.TTL)
					_, err = other.Try(t.Context(), mysqltest.Request(key))
					require.ErrorIs(t, err, backend.ErrHeld)
					second, g2 := backendtest.Granted(t, other, mysqltest.OwnedRequest(key, "owner ü", mysqltest.TTL))
					require.Equal(t, 2, g2.Holds)
					_, err = c.Renew(t.Context(), hold)
					require.NoError(t, err)
					require.NoError(t, other.Release(t.Context(), second))
					_, err = c.Renew(t.Context(), hold)
					require.NoError(t, err)
					next, err := c.HandOver(t.Context(), hold, mysqltest.Request(key))
					require.NoError(t, err)
					require.Greater(t, next.Token, last)
					last = next.Token
					require.NoError(t, other.ForceRelease(t.Context(), key, next.Token))
				}
			})
		}
	})
}

// Without a free connection nothing is sent, and the error says what to do.
func TestEmptyPool(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		db.SetMaxOpenConns(1)
		b := tableOn(t, db, Options{})
		hold, _ := backendtest.Granted(t, b, mysqltest.Request(backendtest.UniqueKey(t)))
		conn, err := db.Conn(t.Context())
		require.NoError(t, err)
		_, err = b.Renew(backendtest.Short(t, 50*time.Millisecond), hold)
		require.ErrorIs(t, err, backend.ErrUnavailable)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "make the pool larger")
		require.NoError(t, conn.Close())
		_, err = b.Renew(t.Context(), hold)
		require.NoError(t, err)
	})
}

// A connection that died while it was idle is replaced without anybody noticing.
func TestDeadIdleConnections(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		b := tableOn(t, db, Options{})
		admin := mysqltest.AdminPool(t, s)
		hold, _ := backendtest.Granted(t, b, mysqltest.Request(backendtest.UniqueKey(t)))
		for range 3 {
			var id int64
			require.NoError(t, db.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&id))
			mysqltest.Exec(t, admin, fmt.Sprintf("KILL %d", id))
			backendtest.Eventually(t, "the server has closed it", func() bool {
				var n int
				require.NoError(t, admin.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM information_schema.processlist WHERE id=?", id).Scan(&n))
				return n == 0
			})
			_, err := b.Renew(t.Context(), hold)
			require.NoError(t, err)
		}
	})
}

// What happens to a server, to those who hold keys of a table.
func TestServerDies(t *testing.T) {
	mysqltest.Disturbed(t,
		mysqltest.Disturbance{What: "dies", Test: testServerDies},
		mysqltest.Disturbance{What: "stands still", Test: testGuardedOnFrozenServer},
		mysqltest.Disturbance{What: "becomes read-only", Test: testReadOnlyServer},
		mysqltest.Disturbance{What: "becomes read-only during a guarded write", Test: testGuardedOnReadOnlyServer},
		mysqltest.Disturbance{What: "takes no more connections", Test: testTooManyConnections},
		mysqltest.Disturbance{What: "has statements in its binary log", Test: testStatementBinlog},
	)
}

// A server that is frozen or restarted: what was committed is kept, what was in
// flight is unknown, and the pool recovers.
func testServerDies(t *testing.T, server, _ *servertest.Server) {
	mysqltest.Exec(t, mysqltest.AdminPool(t, server), "SET GLOBAL innodb_flush_log_at_trx_commit=1")
	db := mysqltest.UserPool(t, server, "")
	b := tableOn(t, db, Options{})
	require.Contains(t, b.Guarantees().HoldsSurvive, backend.FaultRestart)
	hold, g := backendtest.Granted(t, b, mysqltest.Request(backendtest.UniqueKey(t)))
	server.Kill(t)
	_, err := b.Renew(t.Context(), hold)
	require.Error(t, err)
	require.NotErrorIs(t, err, backend.ErrNotHeld)
	_, err = b.Try(t.Context(), mysqltest.Request(hold.Key))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	server.Restart(t, true)
	_, err = b.Renew(t.Context(), hold)
	require.NoError(t, err)
	require.NoError(t, b.Release(t.Context(), hold))
	_, next := backendtest.Granted(t, b, mysqltest.Request(hold.Key))
	require.Greater(t, next.Token, g.Token)
	require.Contains(t, fmtErr(b.Try(t.Context(), mysqltest.Request(hold.Key))), "held")

	server.Freeze(t)
	_, err = b.Renew(backendtest.Short(t, 200*time.Millisecond), hold)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, backend.ErrUnavailable, "it may have been applied")
	server.Resume(t)
}

func fmtErr(_ backend.Grant, err error) string {
	if err == nil {
		return "granted"
	}
	return err.Error()
}

// A server that does not write each commit to the disk forgets the last of them when
// it is killed. The holder is told that its hold is gone, and no token comes again,
// since the server's clock has gone on.
func TestServerForgetsCommits(t *testing.T) {
	mysqltest.OnEach(t, func(t *testing.T, server *servertest.Server) {
		b := tableOn(t, mysqltest.Pool(t, servertest.MySQLDSN(server), ""), Options{})
		require.NotContains(t, b.Guarantees().HoldsSurvive, backend.FaultRestart)
		forgotten := false
		var last uint64
		for range 10 {
			hold, g := backendtest.Granted(t, b, mysqltest.Request(backendtest.UniqueKey(t)))
			require.Greater(t, g.Token, last)
			server.Kill(t)
			server.Restart(t, true)
			var err error
			backendtest.Eventually(t, "the server answers again", func() bool {
				_, err = b.Renew(t.Context(), hold)
				return err == nil || errors.Is(err, backend.ErrNotHeld)
			})
			if err == nil {
				require.NoError(t, b.Release(t.Context(), hold))
			}
			next, again := backendtest.Granted(t, b, mysqltest.Request(hold.Key))
			require.Greater(t, again.Token, g.Token)
			last = again.Token
			require.NoError(t, b.Release(t.Context(), next))
			if forgotten = err != nil; forgotten {
				break
			}
		}
		require.True(t, forgotten, "the server has kept every commit, so that this proves nothing")
	}, servertest.WithControl(), servertest.WithDataOnDisk(), servertest.WithArgs("--innodb-flush-log-at-trx-commit=0", "--innodb-flush-log-at-timeout=600"))
}

// A read-only server is no place for locks, and one that becomes read-only ends no
// hold.
func testReadOnlyServer(t *testing.T, server, _ *servertest.Server) {
	db, admin := mysqltest.UserPool(t, server, ""), mysqltest.AdminPool(t, server)
	mysqltest.Exec(t, admin, "SET GLOBAL innodb_flush_log_at_trx_commit=2")
	b := tableOn(t, db, Options{})
	hold, _ := backendtest.Granted(t, b, mysqltest.Request(backendtest.UniqueKey(t)))
	mysqltest.Exec(t, admin, "SET GLOBAL read_only=1")
	_, err := b.Renew(t.Context(), hold)
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, "primary")
	_, err = b.Try(t.Context(), mysqltest.Request(backendtest.UniqueKey(t)))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorIs(t, b.Release(t.Context(), hold), backend.ErrUnavailable)
	_, err = New(t.Context(), db, Options{})
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, "primary")
	_, err = New(t.Context(), admin, Options{})
	require.ErrorIs(t, err, backend.ErrUnavailable, "this account may write all the same, and would exclude nobody on the primary")
	mysqltest.Exec(t, admin, "SET GLOBAL read_only=0")
	logger, text := mysqltest.Logged()
	_, err = New(t.Context(), admin, Options{Logger: logger})
	require.NoError(t, err)
	require.Contains(t, text(), "innodb_flush_log_at_trx_commit", "the server does not write each commit to the disk")
	_, err = b.Renew(t.Context(), hold)
	require.NoError(t, err)
	testMightyAccount(t, admin)
}

// An account that may write on a read-only server renews and takes nothing there.
func testMightyAccount(t *testing.T, admin *sql.DB) {
	b := tableOn(t, admin, Options{})
	key, other := backendtest.UniqueKey(t), backendtest.UniqueKey(t)
	hold, _ := backendtest.Granted(t, b, mysqltest.Request(key))
	second, _ := backendtest.Granted(t, b, mysqltest.Request(other))
	was, _ := backendtest.Granted(t, b, mysqltest.Request(key+"/freed"))
	require.NoError(t, b.Release(t.Context(), was))
	lease, err := lockerOn(t, admin, lock.Options{}).Acquire(t.Context(), backendtest.UniqueKey(t), lock.WithoutRenewal())
	require.NoError(t, err)
	mysqltest.Exec(t, admin, "SET GLOBAL read_only=1")
	defer mysqltest.Exec(t, admin, "SET GLOBAL read_only=0")
	_, err = b.Renew(t.Context(), hold)
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, "primary")
	require.ErrorIs(t, Guarded(t.Context(), lease, func(context.Context, *sql.Tx) error {
		t.Error("what it would write is not on the primary")
		return nil
	}), backend.ErrUnavailable)
	for _, r := range b.RenewBatch(t.Context(), []backend.Hold{hold, second}) {
		require.ErrorIs(t, r.Err, backend.ErrUnavailable)
	}
	for what, k := range map[string]string{"freed lately": key + "/freed", "without a row": backendtest.UniqueKey(t), "held": other} {
		_, err = b.Try(t.Context(), mysqltest.Request(k))
		require.ErrorIs(t, err, backend.ErrUnavailable, what)
	}
	_, err = b.HandOver(t.Context(), hold, mysqltest.Request(key))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	mysqltest.Exec(t, admin, "SET GLOBAL read_only=0")
	for _, h := range []backend.Hold{hold, second} {
		_, err = b.Renew(t.Context(), h)
		require.NoError(t, err)
	}
}

// A server that becomes read-only in the middle of a guarded write commits nothing of it,
// and says so. The lease goes on.
func testGuardedOnReadOnlyServer(t *testing.T, server, _ *servertest.Server) {
	admin := mysqltest.AdminPool(t, server)
	defer mysqltest.Exec(t, admin, "SET GLOBAL read_only=0")
	table := mysqltest.WorkTable(t, admin)
	lease, err := lockerOn(t, mysqltest.UserPool(t, server, ""), lock.Options{}).Acquire(t.Context(), backendtest.UniqueKey(t), lock.WithTTL(time.Minute), lock.WithoutRenewal())
	require.NoError(t, err)
	err = Guarded(t.Context(), lease, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE "+table+" SET n=7 WHERE id=1")
		mysqltest.Exec(t, admin, "SET GLOBAL read_only=1")
		return err
	})
	require.ErrorIs(t, err, lock.ErrUnavailable)
	require.ErrorContains(t, err, "primary")
	require.NotErrorIs(t, err, lock.ErrOutcomeUnknown)
	mysqltest.Exec(t, admin, "SET GLOBAL read_only=0")
	require.Zero(t, mysqltest.Number(t, admin, "SELECT n FROM "+table+" WHERE id=1"))
	require.NoError(t, lease.Release(t.Context()))
}

// A pool that its owner closes renews nothing any more: its holds end at the next
// renewal, and not only at the deadline.
func TestClosedPoolEndsItsHolds(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		b := tableOn(t, db, Options{})
		one, _ := backendtest.Granted(t, b, mysqltest.Request(backendtest.UniqueKey(t)))
		two, _ := backendtest.Granted(t, b, mysqltest.Request(backendtest.UniqueKey(t)))
		require.NoError(t, db.Close())
		_, err := b.Renew(t.Context(), one)
		require.ErrorIs(t, err, backend.ErrSessionLost)
		for _, r := range b.RenewBatch(t.Context(), []backend.Hold{one, two}) {
			require.ErrorIs(t, r.Err, backend.ErrSessionLost)
		}
	})
}

// A server that takes no more connections is unavailable; holds go on.
func testTooManyConnections(t *testing.T, s, _ *servertest.Server) {
	admin := mysqltest.AdminPool(t, s)
	mysqltest.MakeSmall(t, admin)
	b := tableOn(t, mysqltest.UserPool(t, s, ""), Options{})
	key := backendtest.UniqueKey(t)
	hold, _ := backendtest.Granted(t, b, mysqltest.Request(key))
	mysqltest.Crowded(t, s, admin, []*sql.DB{b.db}, func(others *sql.DB) {
		another, err := newBackend(others, "")
		require.NoError(t, err)
		_, err = another.Try(t.Context(), mysqltest.Request(key+"/2"))
		require.ErrorIs(t, err, backend.ErrUnavailable)
		require.ErrorContains(t, err, "max_connections")
		_, err = b.Renew(t.Context(), hold)
		require.NoError(t, err)
		require.NoError(t, b.Release(t.Context(), hold))
	})
}
