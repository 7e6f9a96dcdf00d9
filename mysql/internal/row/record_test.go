package row

import (
	"database/sql"
	"strconv"
	"strings"
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
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// Tokens are committed on their own: those of holders whose connections were ended
// are not given again, nor after an operator has deleted what he can delete.
func TestRowTokensSurvive(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := mysqltest.AdminPool(t, s)
		b := backendOn(t, s, Options{})
		key := backendtest.UniqueKey(t)
		// Ahead of the server's clock, the counter alone has to count.
		hold, g := backendtest.Granted(t, b, mysqltest.Request(key))
		require.NoError(t, b.Release(t.Context(), hold))
		ahead := g.Token + uint64(time.Hour/time.Microsecond)
		mysqltest.Exec(t, admin, "UPDATE lock_rows_holders SET token = ? WHERE k = ?", ahead, key)
		for i := range 3 {
			hold, g := backendtest.Granted(t, b, mysqltest.Request(key))
			assert.Equal(t, ahead+uint64(i)+1, g.Token)
			require.NoError(t, b.ForceRelease(t.Context(), key, g.Token)) // the connection ends
			assert.ErrorIs(t, b.Release(t.Context(), hold), backend.ErrLost)
		}
		mysqltest.Exec(t, admin, "DELETE FROM lock_rows_holders WHERE k = ?", key)
		mysqltest.Exec(t, admin, "DELETE FROM lock_rows WHERE k = ?", key)
		hold, again := backendtest.Granted(t, b, mysqltest.Request(key))
		assert.Greater(t, again.Token, g.Token)
		require.NoError(t, b.Release(t.Context(), hold))
		mysqltest.Exec(t, admin, "DELETE FROM lock_rows_holders WHERE k = ?", key)
		hold, last := backendtest.Granted(t, b, mysqltest.Request(key))
		assert.Greater(t, last.Token, again.Token)
		require.NoError(t, b.Release(t.Context(), hold))
		mysqltest.Exec(t, admin, "UPDATE lock_rows_holders SET token = ? WHERE k = ?", uint64(largestToken), key)
		_, err := b.Try(t.Context(), mysqltest.Request(key))
		assert.ErrorIs(t, err, backend.ErrPermanent)
		assert.ErrorContains(t, err, "2^53")
		mysqltest.Exec(t, admin, "UPDATE lock_rows_holders SET token = 1 WHERE k = ?", key)
		hold, _ = backendtest.Granted(t, b, mysqltest.Request(key)) // the failed try has left nothing
		require.NoError(t, b.Release(t.Context(), hold))
	})
}

// A token that is written after the session that had the row locked has ended is granted to
// nobody: others may have been granted the row meanwhile, with a smaller one.
func TestRowTokenAfterTheEndOfTheSession(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := mysqltest.AdminPool(t, s)
		b, other := backendOn(t, s, Options{}), backendOn(t, s, Options{})
		key := backendtest.UniqueKey(t)
		hold, _ := backendtest.Granted(t, b, mysqltest.Request(key))
		session := connectionOf(t, admin, key)
		require.NoError(t, b.Release(t.Context(), hold))
		hold, g := backendtest.Granted(t, other, mysqltest.Request(key))
		require.NoError(t, other.Release(t.Context(), hold))

		blocker, err := admin.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = blocker.Rollback() }()
		_, err = blocker.ExecContext(t.Context(), "SELECT token FROM lock_rows_holders WHERE k = ? FOR UPDATE", key)
		require.NoError(t, err)
		tried := make(chan error, 1)
		late := mysqltest.Request(key)
		go func() {
			_, err := b.Try(t.Context(), late)
			tried <- err
		}()
		backendtest.Eventually(t, "the token waits for the record", func() bool {
			return statementsLike(t, admin, "UPDATE%LAST_INSERT_ID%"+digits(key)+"%") > 0
		})
		mysqltest.Exec(t, admin, "KILL CONNECTION "+strconv.Itoa(session))
		backendtest.Eventually(t, "the row is free", func() bool {
			locked, err := b.isLocked(t.Context(), admin, key)
			return err == nil && !locked
		})
		require.NoError(t, blocker.Rollback())
		require.Error(t, <-tried)
		require.ErrorIs(t, b.Release(t.Context(), backend.HoldOf(late)), backend.ErrNotHeld)
		written := mysqltest.Number(t, admin, "SELECT token FROM lock_rows_holders WHERE k = ?", key)
		require.GreaterOrEqual(t, uint64(written), g.Token)
		hold, next := backendtest.Granted(t, b, mysqltest.Request(key))
		require.Greater(t, next.Token, uint64(written))
		require.NoError(t, b.Release(t.Context(), hold))
	})
}

// A session that has lost its row may have its named lock for a moment longer. What this backend
// writes in that moment, for who got the row, counts as another's.
func TestRowTokenKnownBeforeTheRow(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		b := backendOn(t, s, Options{})
		key := backendtest.UniqueKey(t)
		used := func() {
			held, _ := backendtest.Granted(t, b, mysqltest.Request(key))
			require.NoError(t, b.Release(t.Context(), held))
		}
		late := mysqltest.Request(key)
		ends, err := b.sessions.open(t.Context(), late.TTL)
		require.NoError(t, err)
		defer ends.close()
		next := func(meanwhile func()) bool {
			require.NoError(t, b.lockRow(t.Context(), ends, key, true))
			require.NoError(t, ends.exec(t.Context(), "ROLLBACK"))
			meanwhile()
			_, next, err := b.nextToken(t.Context(), &hold{key: key, s: ends}, late)
			require.NoError(t, err)
			return next
		}
		used()
		require.True(t, next(func() {}))
		used()
		require.False(t, next(used))
	})
}

// A grant without a savepoint is one of this backend's after its own last one. Who had the row in
// between has written a token, whether the session that asks now lives or not.
func TestRowTokenTellsOfOthers(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		b, other := backendOn(t, s, Options{}), backendOn(t, s, Options{})
		b.atOnce = time.Hour
		key := backendtest.UniqueKey(t)
		marked := func() bool {
			ours, g := backendtest.Granted(t, b, mysqltest.Request(key))
			h := b.find(ours)
			require.Equal(t, g.Token, b.lastOf(key))
			require.NoError(t, b.Release(t.Context(), ours))
			return h.marked
		}
		require.True(t, marked(), "nothing was known of the key")
		require.False(t, marked())
		theirs, _ := backendtest.Granted(t, other, mysqltest.Request(key))
		require.NoError(t, other.Release(t.Context(), theirs))
		require.True(t, marked(), "the other one was granted the key")
		require.False(t, marked())
		require.NoError(t, b.Forget(t.Context(), key))
		require.True(t, marked(), "the record is another one")

		for i := range maxTokens + 10 {
			h := &hold{key: strconv.Itoa(i), token: uint64(i)}
			b.starts(h, 0)
			b.ends(h)
		}
		require.Len(t, b.tokens, maxTokens)
	})
}

// A row cannot be deleted while it is held, nor its table altered.
func TestRowHeldRowCannotBeDeleted(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := mysqltest.AdminPool(t, s)
		b := backendOn(t, s, Options{})
		key := backendtest.UniqueKey(t)
		hold, _ := backendtest.Granted(t, b, mysqltest.Request(key))
		conn, err := admin.Conn(t.Context())
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.ExecContext(t.Context(), "SET SESSION innodb_lock_wait_timeout = 1")
		require.NoError(t, err)
		_, err = conn.ExecContext(t.Context(), "DELETE FROM lock_rows WHERE k = ?", key)
		assert.EqualValues(t, wire.CodeLockWaitTimeout, wire.CodeOf(err))
		require.NoError(t, b.Release(t.Context(), hold))
	})
}

// A session that lives may hold another key by now: the record of its earlier hold
// neither makes that key held nor lets anybody end the session.
func TestRowRecordOfAnEarlierHold(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		b, other := backendOn(t, s, Options{}), backendOn(t, s, Options{})
		key := backendtest.UniqueKey(t)
		hold, g := backendtest.Granted(t, b, mysqltest.Request(key+"/1"))
		session := b.find(hold).s
		require.NoError(t, b.Release(t.Context(), hold))
		second, _ := backendtest.Granted(t, b, mysqltest.Request(key+"/2"))
		require.Same(t, session, b.find(second).s)
		_, err := other.Inspect(t.Context(), key+"/1")
		assert.ErrorIs(t, err, backend.ErrNotHeld)
		assert.ErrorIs(t, other.ForceRelease(t.Context(), key+"/1", g.Token), backend.ErrNotHeld)
		_, err = b.Renew(t.Context(), second)
		require.NoError(t, err)
		require.NoError(t, b.Release(t.Context(), second))
	})
}

// Another account may look, but not end the holder's connection without the right to.
func TestRowForceReleaseNeedsTheRight(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := mysqltest.AdminPool(t, s)
		mysqltest.Exec(t, admin, "CREATE USER IF NOT EXISTS row_stranger@'%' IDENTIFIED BY 'stranger-row'")
		mysqltest.Exec(t, admin, "GRANT SELECT, INSERT, UPDATE ON mortise.* TO row_stranger@'%'")
		b := backendOn(t, s, Options{})
		key := backendtest.UniqueKey(t)
		hold, g := backendtest.Granted(t, b, mysqltest.Request(key))
		stranger, err := New(t.Context(), mysqltest.Connector(t, s, func(c *mysql.Config) {
			c.User, c.Passwd = "row_stranger", "stranger-row"
		}), Options{})
		require.NoError(t, err)
		defer stranger.Close()
		rec, err := stranger.Inspect(t.Context(), key)
		require.NoError(t, err)
		assert.Equal(t, g.Token, rec.Token)
		err = stranger.ForceRelease(t.Context(), key, g.Token)
		assert.ErrorIs(t, err, backend.ErrPermanent)
		assert.ErrorContains(t, err, "CONNECTION_ADMIN")
		_, err = b.Renew(t.Context(), hold)
		require.NoError(t, err)
		require.NoError(t, b.Release(t.Context(), hold))
	})
}

func TestRowTables(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := mysqltest.AdminPool(t, s)
		connector := mysqltest.Connector(t, s, nil)
		table := "rows_" + backend.NewID().Hex()[:12]
		open := func(change func(*mysql.Config), o Options) error {
			c := connector
			if change != nil {
				c = mysqltest.Connector(t, s, change)
			}
			o.Table = table
			b, err := New(t.Context(), c, o)
			if err == nil {
				require.NoError(t, b.Close())
			}
			return err
		}
		err := open(nil, Options{NoCreate: true})
		assert.ErrorIs(t, err, backend.ErrPermanent)
		assert.ErrorContains(t, err, "CREATE TABLE IF NOT EXISTS `"+table+"_holders`")
		mysqltest.Exec(t, admin, "CREATE USER IF NOT EXISTS row_reader@'%' IDENTIFIED BY 'reader-row'")
		mysqltest.Exec(t, admin, "GRANT SELECT, INSERT, UPDATE ON mortise.* TO row_reader@'%'")
		reader := func(c *mysql.Config) { c.User, c.Passwd = "row_reader", "reader-row" }
		err = open(reader, Options{})
		assert.ErrorIs(t, err, backend.ErrPermanent)
		assert.ErrorContains(t, err, "CREATE TABLE")
		assert.NotContains(t, err.Error(), "reader-row")
		require.NoError(t, open(nil, Options{}))
		require.NoError(t, open(reader, Options{}))
		require.NoError(t, open(nil, Options{NoCreate: true}))
		mysqltest.Exec(t, admin, "ALTER TABLE "+table+" ENGINE=MyISAM")
		err = open(nil, Options{})
		assert.ErrorIs(t, err, backend.ErrPermanent)
		assert.ErrorContains(t, err, "InnoDB")
		mysqltest.Exec(t, admin, "DROP TABLE "+table+", "+table+"_holders")

		err = open(func(c *mysql.Config) { c.Passwd = "wrong" }, Options{})
		assert.ErrorIs(t, err, backend.ErrPermanent)
		err = open(func(c *mysql.Config) { c.DBName = "nowhere" }, Options{})
		assert.ErrorIs(t, err, backend.ErrPermanent)
		err = open(func(c *mysql.Config) { c.Addr = "127.0.0.1:1" }, Options{})
		assert.ErrorIs(t, err, backend.ErrUnavailable)
	})
}

func TestRowBadOptions(t *testing.T) {
	t.Parallel()
	_, err := newLocker(t.Context(), nil, Options{}, lock.Options{})
	assert.ErrorIs(t, err, backend.ErrInvalid)
	c, err := mysql.NewConnector(mysql.NewConfig())
	require.NoError(t, err)
	for _, o := range []Options{
		{PoolSize: -1}, {ControlPoolSize: -1}, {Table: "a b"}, {Table: strings.Repeat("x", 60)},
		{TTL: 1500 * time.Millisecond}, {TTL: 500 * time.Millisecond},
	} {
		_, err := New(t.Context(), c, o)
		assert.ErrorIs(t, err, backend.ErrInvalid, "%+v", o)
	}
}

func TestRowServers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		vars    map[string]string
		mariaDB bool
		refused string
	}{
		{map[string]string{"version": "10.11.19-MariaDB-0+deb12u1", "wsrep_on": "OFF"}, true, ""},
		{map[string]string{"version": "5.5.5-10.6.1-MariaDB-log"}, true, ""},
		{map[string]string{"version": "10.2.44-MariaDB"}, true, "NOWAIT"},
		{map[string]string{"version": "11.8.2-MariaDB", "wsrep_on": "ON"}, true, "Galera"},
		{map[string]string{"version": "9.7.4-2"}, false, ""},
		{map[string]string{"version": "8.0.36"}, false, ""},
		{map[string]string{"version": "8.0.0-dmr"}, false, "NOWAIT"},
		{map[string]string{"version": "5.7.44-log"}, false, "NOWAIT"},
		{map[string]string{"version": "8.4.0", "group_replication_group_name": "g", "group_replication_single_primary_mode": "OFF"}, false, "primaries"},
		{map[string]string{"version": "8.4.0", "group_replication_group_name": "g", "group_replication_single_primary_mode": "ON"}, false, ""},
	} {
		mariaDB, err := checkServer(c.vars)
		assert.Equal(t, c.mariaDB, mariaDB, "%v", c.vars)
		if c.refused == "" {
			assert.NoError(t, err, "%v", c.vars)
		} else {
			assert.ErrorIs(t, err, backend.ErrUnsupported, "%v", c.vars)
			assert.ErrorContains(t, err, c.refused)
		}
	}
}

// What happens to a server, to those who hold rows.
func TestRowServerFaults(t *testing.T) {
	mysqltest.Disturbed(t,
		mysqltest.Disturbance{What: "dies", Test: testRowServerDies},
		mysqltest.Disturbance{What: "becomes read-only", Test: testRowReadOnlyServer},
		mysqltest.Disturbance{What: "becomes read-only during InTx", Test: testInTxOnReadOnlyServer},
		mysqltest.Disturbance{What: "takes no more connections", Test: testRowTooManyConnections},
		mysqltest.Disturbance{What: "has statements in its binary log", Test: testRowStatementBinlog},
		mysqltest.Disturbance{What: "is left", Test: testRowSwitchover},
		mysqltest.Disturbance{What: "is left by those who wait", Test: testRowSwitchoverOfWaiters},
		mysqltest.Disturbance{What: "is left by idle sessions", Test: testRowIdleSessionIsLeft},
	)
}

// A server that becomes read-only takes no new holds, and ends those that there are,
// also of an account that may write all the same; one that is so when the Locker opens
// is refused.
func testRowReadOnlyServer(t *testing.T, s, _ *servertest.Server) {
	admin := mysqltest.AdminPool(t, s)
	b := backendOn(t, s, Options{})
	key := backendtest.UniqueKey(t)
	hold, _ := backendtest.Granted(t, b, mysqltest.Request(key))
	mighty, err := New(t.Context(), mysqltest.Connector(t, s, asAdmin(t, s)), Options{})
	require.NoError(t, err)
	defer mighty.Close()
	other, _ := backendtest.Granted(t, mighty, mysqltest.Request(key+"/3"))
	mysqltest.Exec(t, admin, "SET GLOBAL read_only = 1")
	for b, hold := range map[backend.Backend]backend.Hold{b: hold, mighty: other} {
		_, err := b.Renew(t.Context(), hold)
		require.ErrorIs(t, err, backend.ErrSessionLost)
		require.ErrorContains(t, err, "read-only")
		require.ErrorIs(t, b.Release(t.Context(), hold), backend.ErrSessionLost)
	}
	_, err = b.Try(t.Context(), mysqltest.Request(key+"/2"))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, "primary")
	for _, change := range []func(*mysql.Config){nil, asAdmin(t, s)} {
		_, err = newLocker(t.Context(), mysqltest.Connector(t, s, change), Options{}, lock.Options{})
		require.ErrorIs(t, err, backend.ErrUnavailable)
		require.ErrorContains(t, err, "primary")
	}
	mysqltest.Exec(t, admin, "SET GLOBAL read_only = 0")
	hold, _ = backendtest.Granted(t, b, mysqltest.Request(key))
	require.NoError(t, b.Release(t.Context(), hold))
}

// A server that is killed forgets row locks, and not tokens; one that stands still
// for longer than the TTL costs the hold, whatever it does with it afterwards.
func testRowServerDies(t *testing.T, s, _ *servertest.Server) {
	mysqltest.Exec(t, mysqltest.AdminPool(t, s), "SET GLOBAL innodb_flush_log_at_trx_commit = 0")
	a, b := lockerOn(t, s, Options{}, lock.Options{}), lockerOn(t, s, Options{}, lock.Options{})
	key := backendtest.UniqueKey(t)
	lease, err := a.Acquire(t.Context(), key, lock.WithTTL(2*time.Second))
	require.NoError(t, err)
	s.Freeze(t)
	require.ErrorIs(t, mysqltest.Ended(t, lease), lock.ErrLost)
	s.Resume(t)
	next, err := b.Acquire(backendtest.Short(t, mysqltest.Patience), key, lock.WithTTL(2*time.Second))
	require.NoError(t, err)
	assert.Greater(t, next.Token(), lease.Token())
	s.Kill(t)
	s.Restart(t, true)
	require.ErrorIs(t, mysqltest.Ended(t, next), lock.ErrLost)
	last, err := a.Acquire(backendtest.Short(t, mysqltest.Patience), key)
	require.NoError(t, err)
	assert.Greater(t, last.Token(), next.Token())
	require.NoError(t, last.Release(t.Context()))
}

// A key that was never granted has a record without a session: nobody holds it.
func TestRowRecordWithoutASession(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		b, admin := backendOn(t, s, Options{}), mysqltest.AdminPool(t, s)
		key := backendtest.UniqueKey(t)
		mysqltest.Exec(t, admin, recordOfNobody(b.statements, key))
		_, err := b.Inspect(t.Context(), key)
		require.ErrorIs(t, err, backend.ErrNotHeld)
		for _, token := range []uint64{0, 1} {
			require.ErrorIs(t, b.Revoke(t.Context(), key, token), backend.ErrNotHeld)
			require.ErrorIs(t, b.ForceRelease(t.Context(), key, token), backend.ErrNotHeld)
		}
		require.NoError(t, b.List(t.Context(), key, func(backend.Record) bool { panic("not reached") }))
	})
}

// A server that takes no more connections is unavailable; holds go on.
func testRowTooManyConnections(t *testing.T, s, _ *servertest.Server) {
	admin := mysqltest.AdminPool(t, s)
	mysqltest.MakeSmall(t, admin)
	b := backendOn(t, s, Options{})
	key := backendtest.UniqueKey(t)
	hold, _ := backendtest.Granted(t, b, mysqltest.Request(key))
	mysqltest.Crowded(t, s, admin, []*sql.DB{b.control, b.sessions.db}, func(*sql.DB) {
		_, err := b.Try(t.Context(), mysqltest.Request(key+"/2"))
		require.ErrorIs(t, err, backend.ErrUnavailable)
		require.ErrorContains(t, err, "max_connections")
		_, err = b.Renew(t.Context(), hold)
		require.NoError(t, err)
		require.NoError(t, b.Release(t.Context(), hold))
	})
}

// TestRowRefusalShowsTheLongerTTL: a hold that is renewed for longer, as when its owner enters
// again, is shown with that time to those whom it keeps out.
func TestRowRefusalShowsTheLongerTTL(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		b, other := backendOn(t, s, Options{}), backendOn(t, s, Options{})
		hold, _ := backendtest.Granted(t, b, mysqltest.Request(backendtest.UniqueKey(t)))
		hold.TTL *= 10
		_, err := b.Renew(t.Context(), hold)
		require.NoError(t, err)
		_, err = other.Try(t.Context(), mysqltest.Request(hold.Key))
		var held *backend.HeldError
		require.ErrorAs(t, err, &held)
		assert.Equal(t, hold.TTL, held.Remaining)
	})
}
