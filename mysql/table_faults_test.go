package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

// storm is how long the tests of many goroutines on new keys last: longer where
// LOCK_TEST_LONG is set, and as long as LOCK_TEST_STORM says.
func storm() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("LOCK_TEST_STORM")); err == nil {
		return d
	}
	if os.Getenv("LOCK_TEST_LONG") != "" {
		return time.Minute
	}
	return 2 * time.Second
}

// deadlocks counts those that the server has seen since it started.
func deadlocks(t testing.TB, admin *sql.DB) int {
	t.Helper()
	return number(t, admin, "SELECT MAX(count) FROM information_schema.innodb_metrics WHERE name='lock_deadlocks'")
}

// A wait for a row that ends with 1205 is repeated, until the context ends.
func TestLockWaitTimeoutIsNotTheEnd(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		db := userPool(t, s, "innodb_lock_wait_timeout=1")
		b := tableOn(t, db, nil)
		hold, _ := granted(t, b, request(uniqueKey(t)))
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		_, err = tx.ExecContext(t.Context(), "UPDATE locks SET note=note WHERE lock_key=?", []byte(hold.Key))
		require.NoError(t, err)

		require.ErrorIs(t, b.Release(short(t, 100*time.Millisecond), hold), context.DeadlineExceeded)
		released := make(chan error, 1)
		start := time.Now()
		go func() { released <- b.Release(t.Context(), hold) }()
		time.AfterFunc(1500*time.Millisecond, func() { _ = tx.Rollback() })
		require.NoError(t, <-released)
		require.Greater(t, time.Since(start), time.Second, "the row was locked for longer than the server waits")
	})
}

// strangeSessions are parameters of a DSN with which a program may open its pool.
func strangeSessions(t testing.TB, s *servertest.Server) map[string]string {
	t.Helper()
	sessions := map[string]string{
		"not strict":         "sql_mode=''",
		"ANSI":               "sql_mode='ANSI,STRICT_ALL_TABLES'",
		"no backslashes":     "sql_mode='NO_BACKSLASH_ESCAPES'",
		"time zone":          "time_zone='%2B09:00'",
		"interpolated":       "interpolateParams=true&multiStatements=true&parseTime=true&loc=Asia%2FTokyo",
		"latin1":             "charset=latin1",
		"safe updates":       "sql_safe_updates=1",
		"compressed":         "compress=true",
		"result of an alias": "columnsWithAlias=true",
		"found rows":         "clientFoundRows=true",
	}
	isolation := "transaction_isolation"
	if isMariaDB(t, s) {
		isolation = "tx_isolation"
		sessions["empty is NULL"] = "sql_mode='EMPTY_STRING_IS_NULL'"
		sessions["Oracle"] = "sql_mode='ORACLE'"
		sessions["simultaneous"] = "sql_mode='SIMULTANEOUS_ASSIGNMENT'"
	} else {
		sessions["truncated fractions"] = "sql_mode='TIME_TRUNCATE_FRACTIONAL,PAD_CHAR_TO_FULL_LENGTH'"
	}
	for _, level := range []string{"REPEATABLE-READ", "READ-COMMITTED", "SERIALIZABLE", "READ-UNCOMMITTED"} {
		sessions[level] = isolation + "='" + level + "'"
	}
	return sessions
}

// The result is the same whatever the connections of a pool are set to.
func TestSessionsOfUsers(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		for name, params := range strangeSessions(t, s) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				strange := tableOn(t, userPool(t, s, params), nil)
				plain, _ := sharedTable(t, s)
				key := uniqueKey(t) + "/äöü 漢字 \\ ' \" ` % "
				holder := backend.Holder{Label: `ü 漢 \ ' "`, Host: "h", PID: 1}
				var last uint64
				for i, c := range []*tableBackend{strange, plain, strange} {
					other := []*tableBackend{plain, strange, plain}[i]
					req := ownedRequest(key, "owner ü", ttl)
					req.Holder = holder
					hold, g := granted(t, c, req)
					require.Greater(t, g.Token, last)
					last = g.Token
					rec, err := other.Inspect(t.Context(), key)
					require.NoError(t, err)
					require.Equal(t, holder.Label, rec.Holder.Label)
					require.Greater(t, rec.Remaining, ttl/2)
					require.LessOrEqual(t, rec.Remaining, ttl)
					_, err = other.Try(t.Context(), request(key))
					require.ErrorIs(t, err, backend.ErrHeld)
					second, g2 := granted(t, other, ownedRequest(key, "owner ü", ttl))
					require.Equal(t, 2, g2.Holds)
					_, err = c.Renew(t.Context(), hold)
					require.NoError(t, err)
					require.NoError(t, other.Release(t.Context(), second))
					_, err = c.Renew(t.Context(), hold)
					require.NoError(t, err)
					next, err := c.HandOver(t.Context(), hold, request(key))
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
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		db := userPool(t, s, "")
		db.SetMaxOpenConns(1)
		b := tableOn(t, db, nil)
		hold, _ := granted(t, b, request(uniqueKey(t)))
		conn, err := db.Conn(t.Context())
		require.NoError(t, err)
		_, err = b.Renew(short(t, 50*time.Millisecond), hold)
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
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		db := userPool(t, s, "")
		b := tableOn(t, db, nil)
		admin := adminPool(t, s)
		hold, _ := granted(t, b, request(uniqueKey(t)))
		for range 3 {
			var id int64
			require.NoError(t, db.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&id))
			execOn(t, admin, fmt.Sprintf("KILL %d", id))
			eventually(t, "the server has closed it", func() bool {
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
	disturbed(t,
		disturbance{"dies", testServerDies},
		disturbance{"stands still", testGuardedOnFrozenServer},
		disturbance{"becomes read-only", testReadOnlyServer},
		disturbance{"becomes read-only during a guarded write", testGuardedOnReadOnlyServer},
		disturbance{"takes no more connections", testTooManyConnections},
		disturbance{"has statements in its binary log", testStatementBinlog},
		disturbance{"is left", testSwitchover},
	)
}

// A server that is frozen or restarted: what was committed is kept, what was in
// flight is unknown, and the pool recovers.
func testServerDies(t *testing.T, server, _ *servertest.Server) {
	execOn(t, adminPool(t, server), "SET GLOBAL innodb_flush_log_at_trx_commit=1")
	db := userPool(t, server, "")
	b := tableOn(t, db, nil)
	require.Contains(t, b.Guarantees().HoldsSurvive, backend.EventRestart)
	hold, g := granted(t, b, request(uniqueKey(t)))
	server.Kill(t)
	_, err := b.Renew(t.Context(), hold)
	require.Error(t, err)
	require.NotErrorIs(t, err, backend.ErrNotHeld)
	_, err = b.Try(t.Context(), request(hold.Key))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	server.Restart(t, true)
	_, err = b.Renew(t.Context(), hold)
	require.NoError(t, err)
	require.NoError(t, b.Release(t.Context(), hold))
	_, next := granted(t, b, request(hold.Key))
	require.Greater(t, next.Token, g.Token)
	require.Contains(t, fmtErr(b.Try(t.Context(), request(hold.Key))), "held")

	server.Freeze(t)
	_, err = b.Renew(short(t, 200*time.Millisecond), hold)
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
	onEach(t, func(t *testing.T, server *servertest.Server) {
		b := tableOn(t, poolOf(t, servertest.MySQLDSN(server), ""), nil)
		require.NotContains(t, b.Guarantees().HoldsSurvive, backend.EventRestart)
		forgotten := false
		var last uint64
		for range 10 {
			hold, g := granted(t, b, request(uniqueKey(t)))
			require.Greater(t, g.Token, last)
			server.Kill(t)
			server.Restart(t, true)
			var err error
			eventually(t, "the server answers again", func() bool {
				_, err = b.Renew(t.Context(), hold)
				return err == nil || errors.Is(err, backend.ErrNotHeld)
			})
			if err == nil {
				require.NoError(t, b.Release(t.Context(), hold))
			}
			next, again := granted(t, b, request(hold.Key))
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
	db, admin := userPool(t, server, ""), adminPool(t, server)
	execOn(t, admin, "SET GLOBAL innodb_flush_log_at_trx_commit=2")
	b := tableOn(t, db, nil)
	hold, _ := granted(t, b, request(uniqueKey(t)))
	execOn(t, admin, "SET GLOBAL read_only=1")
	_, err := b.Renew(t.Context(), hold)
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, "primary")
	_, err = b.Try(t.Context(), request(uniqueKey(t)))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorIs(t, b.Release(t.Context(), hold), backend.ErrUnavailable)
	_, err = NewTable(t.Context(), db, nil)
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, "primary")
	_, err = NewTable(t.Context(), admin, nil)
	require.ErrorIs(t, err, backend.ErrUnavailable, "this account may write all the same, and would exclude nobody on the primary")
	execOn(t, admin, "SET GLOBAL read_only=0")
	logger, text := logged()
	_, err = NewTable(t.Context(), admin, &Options{Lock: lock.Options{Logger: logger}})
	require.NoError(t, err)
	require.Contains(t, text(), "innodb_flush_log_at_trx_commit", "the server does not write each commit to the disk")
	_, err = b.Renew(t.Context(), hold)
	require.NoError(t, err)
	testMightyAccount(t, admin)
}

// An account that may write on a read-only server renews and takes nothing there.
func testMightyAccount(t *testing.T, admin *sql.DB) {
	b := tableOn(t, admin, nil)
	key, other := uniqueKey(t), uniqueKey(t)
	hold, _ := granted(t, b, request(key))
	second, _ := granted(t, b, request(other))
	was, _ := granted(t, b, request(key+"/freed"))
	require.NoError(t, b.Release(t.Context(), was))
	lease, err := lockerOn(t, admin, nil).Acquire(t.Context(), uniqueKey(t), lock.WithoutRenewal())
	require.NoError(t, err)
	execOn(t, admin, "SET GLOBAL read_only=1")
	defer execOn(t, admin, "SET GLOBAL read_only=0")
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
	for what, k := range map[string]string{"freed lately": key + "/freed", "without a row": uniqueKey(t), "held": other} {
		_, err = b.Try(t.Context(), request(k))
		require.ErrorIs(t, err, backend.ErrUnavailable, what)
	}
	_, err = b.HandOver(t.Context(), hold, request(key))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	execOn(t, admin, "SET GLOBAL read_only=0")
	for _, h := range []backend.Hold{hold, second} {
		_, err = b.Renew(t.Context(), h)
		require.NoError(t, err)
	}
}

// A server that becomes read-only in the middle of a guarded write commits nothing of it,
// and says so. The lease goes on.
func testGuardedOnReadOnlyServer(t *testing.T, server, _ *servertest.Server) {
	admin := adminPool(t, server)
	defer execOn(t, admin, "SET GLOBAL read_only=0")
	table := workTable(t, admin)
	lease, err := lockerOn(t, userPool(t, server, ""), nil).Acquire(t.Context(), uniqueKey(t), lock.WithTTL(time.Minute), lock.WithoutRenewal())
	require.NoError(t, err)
	err = Guarded(t.Context(), lease, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE "+table+" SET n=7 WHERE id=1")
		execOn(t, admin, "SET GLOBAL read_only=1")
		return err
	})
	require.ErrorIs(t, err, lock.ErrUnavailable)
	require.ErrorContains(t, err, "primary")
	require.NotErrorIs(t, err, lock.ErrOutcomeUnknown)
	execOn(t, admin, "SET GLOBAL read_only=0")
	require.Zero(t, number(t, admin, "SELECT n FROM "+table+" WHERE id=1"))
	require.NoError(t, lease.Release(t.Context()))
}

// A pool that its owner closes renews nothing any more: its holds end at the next
// renewal, and not only at the deadline.
func TestClosedPoolEndsItsHolds(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		db := userPool(t, s, "")
		b := tableOn(t, db, nil)
		one, _ := granted(t, b, request(uniqueKey(t)))
		two, _ := granted(t, b, request(uniqueKey(t)))
		require.NoError(t, db.Close())
		_, err := b.Renew(t.Context(), one)
		require.ErrorIs(t, err, backend.ErrSessionLost)
		for _, r := range b.RenewBatch(t.Context(), []backend.Hold{one, two}) {
			require.ErrorIs(t, r.Err, backend.ErrSessionLost)
		}
	})
}
