package mysqllock

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

// Tokens are committed on their own: those of holders whose connections were ended
// are not given again, nor after an operator has deleted what he can delete.
func TestRowTokensSurvive(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := adminOf(t, s)
		b := rowBackendOn(t, s, nil)
		key := uniqueKey(t)
		// Ahead of the server's clock, the counter alone has to count.
		hold, g := granted(t, b, request(key))
		require.NoError(t, b.Release(t.Context(), hold))
		ahead := g.Token + uint64(time.Hour/time.Microsecond)
		run(t, admin, "UPDATE lock_rows_holders SET token = ? WHERE k = ?", ahead, key)
		for i := range 3 {
			hold, g := granted(t, b, request(key))
			assert.Equal(t, ahead+uint64(i)+1, g.Token)
			require.NoError(t, b.ForceRelease(t.Context(), key, g.Token)) // the connection ends
			assert.ErrorIs(t, b.Release(t.Context(), hold), backend.ErrLost)
		}
		run(t, admin, "DELETE FROM lock_rows_holders WHERE k = ?", key)
		run(t, admin, "DELETE FROM lock_rows WHERE k = ?", key)
		hold, again := granted(t, b, request(key))
		assert.Greater(t, again.Token, g.Token)
		require.NoError(t, b.Release(t.Context(), hold))
		run(t, admin, "DELETE FROM lock_rows_holders WHERE k = ?", key)
		hold, last := granted(t, b, request(key))
		assert.Greater(t, last.Token, again.Token)
		require.NoError(t, b.Release(t.Context(), hold))
		run(t, admin, "UPDATE lock_rows_holders SET token = ? WHERE k = ?", uint64(largestToken), key)
		_, err := b.Try(t.Context(), request(key))
		assert.ErrorIs(t, err, backend.ErrPermanent)
		assert.ErrorContains(t, err, "2^53")
		run(t, admin, "UPDATE lock_rows_holders SET token = 1 WHERE k = ?", key)
		hold, _ = granted(t, b, request(key)) // the failed try has left nothing
		require.NoError(t, b.Release(t.Context(), hold))
	})
}

// A row cannot be deleted while it is held, nor its table altered.
func TestRowHeldRowCannotBeDeleted(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := adminOf(t, s)
		b := rowBackendOn(t, s, nil)
		key := uniqueKey(t)
		hold, _ := granted(t, b, request(key))
		conn, err := admin.Conn(t.Context())
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.ExecContext(t.Context(), "SET SESSION innodb_lock_wait_timeout = 1")
		require.NoError(t, err)
		_, err = conn.ExecContext(t.Context(), "DELETE FROM lock_rows WHERE k = ?", key)
		assert.EqualValues(t, codeLockWaitTimeout, codeOf(err))
		require.NoError(t, b.Release(t.Context(), hold))
	})
}

// A session that lives may hold another key by now: the record of its earlier hold
// neither makes that key held nor lets anybody end the session.
func TestRowRecordOfAnEarlierHold(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		b, other := rowBackendOn(t, s, nil), rowBackendOn(t, s, nil)
		key := uniqueKey(t)
		hold, g := granted(t, b, request(key+"/1"))
		session := b.find(hold).s
		require.NoError(t, b.Release(t.Context(), hold))
		second, _ := granted(t, b, request(key+"/2"))
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
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := adminOf(t, s)
		run(t, admin, "CREATE USER IF NOT EXISTS row_stranger@'%' IDENTIFIED BY 'stranger-row'")
		run(t, admin, "GRANT SELECT, INSERT, UPDATE ON mortise.* TO row_stranger@'%'")
		b := rowBackendOn(t, s, nil)
		key := uniqueKey(t)
		hold, g := granted(t, b, request(key))
		stranger, err := NewRowBackend(t.Context(), rowConnector(t, s, func(c *mysql.Config) {
			c.User, c.Passwd = "row_stranger", "stranger-row"
		}), nil)
		require.NoError(t, err)
		defer stranger.Close()
		rec, err := stranger.(backend.Inspector).Inspect(t.Context(), key)
		require.NoError(t, err)
		assert.Equal(t, g.Token, rec.Token)
		err = stranger.(backend.ForceReleaser).ForceRelease(t.Context(), key, g.Token)
		assert.ErrorIs(t, err, backend.ErrPermanent)
		assert.ErrorContains(t, err, "CONNECTION_ADMIN")
		_, err = b.Renew(t.Context(), hold)
		require.NoError(t, err)
		require.NoError(t, b.Release(t.Context(), hold))
	})
}

func TestRowTables(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := adminOf(t, s)
		connector := rowConnector(t, s, nil)
		table := "rows_" + backend.NewID().Hex()[:12]
		open := func(change func(*mysql.Config), o RowOptions) error {
			c := connector
			if change != nil {
				c = rowConnector(t, s, change)
			}
			o.Table = table
			b, err := NewRowBackend(t.Context(), c, &o)
			if err == nil {
				require.NoError(t, b.Close())
			}
			return err
		}
		err := open(nil, RowOptions{NoCreate: true})
		assert.ErrorIs(t, err, backend.ErrPermanent)
		assert.ErrorContains(t, err, "CREATE TABLE IF NOT EXISTS `"+table+"_holders`")
		run(t, admin, "CREATE USER IF NOT EXISTS row_reader@'%' IDENTIFIED BY 'reader-row'")
		run(t, admin, "GRANT SELECT, INSERT, UPDATE ON mortise.* TO row_reader@'%'")
		reader := func(c *mysql.Config) { c.User, c.Passwd = "row_reader", "reader-row" }
		err = open(reader, RowOptions{})
		assert.ErrorIs(t, err, backend.ErrPermanent)
		assert.ErrorContains(t, err, "CREATE TABLE")
		assert.NotContains(t, err.Error(), "reader-row")
		require.NoError(t, open(nil, RowOptions{}))
		require.NoError(t, open(reader, RowOptions{}))
		require.NoError(t, open(nil, RowOptions{NoCreate: true}))
		run(t, admin, "ALTER TABLE "+table+" ENGINE=MyISAM")
		err = open(nil, RowOptions{})
		assert.ErrorIs(t, err, backend.ErrPermanent)
		assert.ErrorContains(t, err, "InnoDB")
		run(t, admin, "DROP TABLE "+table+", "+table+"_holders")

		err = open(func(c *mysql.Config) { c.Passwd = "wrong" }, RowOptions{})
		assert.ErrorIs(t, err, backend.ErrPermanent)
		err = open(func(c *mysql.Config) { c.DBName = "nowhere" }, RowOptions{})
		assert.ErrorIs(t, err, backend.ErrPermanent)
		err = open(func(c *mysql.Config) { c.Addr = "127.0.0.1:1" }, RowOptions{})
		assert.ErrorIs(t, err, backend.ErrUnavailable)
	})
}

func TestRowBadOptions(t *testing.T) {
	t.Parallel()
	_, err := NewRow(t.Context(), nil, nil)
	assert.ErrorIs(t, err, backend.ErrInvalid)
	c, err := mysql.NewConnector(mysql.NewConfig())
	require.NoError(t, err)
	for _, o := range []RowOptions{
		{PoolSize: -1}, {ControlPoolSize: -1}, {Table: "a b"}, {Table: strings.Repeat("x", 60)},
		{Lock: lock.Options{TTL: 1500 * time.Millisecond}}, {Lock: lock.Options{TTL: 500 * time.Millisecond}},
	} {
		_, err := NewRow(t.Context(), c, &o)
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
		mariaDB, err := checkRowServer(c.vars)
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
	disturbed(t,
		disturbance{"dies", testRowServerDies},
		disturbance{"becomes read-only", testRowReadOnlyServer},
		disturbance{"becomes read-only during InTx", testInTxOnReadOnlyServer},
		disturbance{"is left", testRowSwitchover},
		disturbance{"is left by those who wait", testRowSwitchoverOfWaiters},
		disturbance{"is left by idle sessions", testRowIdleSessionIsLeft},
	)
}

// A server that becomes read-only takes no new holds, and ends those that there are,
// also of an account that may write all the same; one that is so when the Locker opens
// is refused.
func testRowReadOnlyServer(t *testing.T, s, _ *servertest.Server) {
	admin := adminOf(t, s)
	b := rowBackendOn(t, s, nil)
	key := uniqueKey(t)
	hold, _ := granted(t, b, request(key))
	mighty, err := NewRowBackend(t.Context(), rowConnector(t, s, asAdmin(t, s)), nil)
	require.NoError(t, err)
	defer mighty.Close()
	other, _ := granted(t, mighty, request(key+"/3"))
	run(t, admin, "SET GLOBAL read_only = 1")
	for b, hold := range map[backend.Backend]backend.Hold{b: hold, mighty: other} {
		_, err := b.Renew(t.Context(), hold)
		require.ErrorIs(t, err, backend.ErrSessionLost)
		require.ErrorContains(t, err, "read-only")
		require.ErrorIs(t, b.Release(t.Context(), hold), backend.ErrSessionLost)
	}
	_, err = b.Try(t.Context(), request(key+"/2"))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, "primary")
	for _, change := range []func(*mysql.Config){nil, asAdmin(t, s)} {
		_, err = NewRow(t.Context(), rowConnector(t, s, change), nil)
		require.ErrorIs(t, err, backend.ErrUnavailable)
		require.ErrorContains(t, err, "primary")
	}
	run(t, admin, "SET GLOBAL read_only = 0")
	hold, _ = granted(t, b, request(key))
	require.NoError(t, b.Release(t.Context(), hold))
}

// A server that takes no more connections is unavailable; holds go on.
func testTooManyConnections(t *testing.T, s, _ *servertest.Server) {
	admin := adminOf(t, s)
	const places = 12
	most := number(t, admin, "SELECT @@max_connections")
	run(t, admin, fmt.Sprint("SET GLOBAL max_connections = ", places))
	row, table := rowBackendOn(t, s, nil), tableOn(t, userPool(t, s, ""), nil)
	key := uniqueKey(t)
	rowHold, _ := granted(t, row, request(key))
	tableHold, _ := granted(t, table, request(key))
	others := userPool(t, s, "")
	var taken []*sql.Conn
	eventually(t, "all places are taken, none of them by a connection that was closed just now", func() bool {
		c, err := others.Conn(t.Context())
		if err == nil {
			taken = append(taken, c)
			return false
		}
		require.EqualValues(t, codeTooManyConnections, codeOf(err))
		open := 0
		for _, db := range []*sql.DB{admin, row.control, row.sessions.db, table.db, others} {
			open += db.Stats().OpenConnections
		}
		return open == places
	})
	_, err := row.Try(t.Context(), request(key+"/2"))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, "max_connections")
	crowded, err := newTable(others, nil)
	require.NoError(t, err)
	_, err = crowded.Try(t.Context(), request(key+"/2"))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, "max_connections")
	_, err = row.Renew(t.Context(), rowHold)
	require.NoError(t, err)
	_, err = table.Renew(t.Context(), tableHold)
	require.NoError(t, err)
	require.NoError(t, row.Release(t.Context(), rowHold))
	require.NoError(t, table.Release(t.Context(), tableHold))
	for _, c := range taken {
		require.NoError(t, c.Close())
	}
	run(t, admin, fmt.Sprint("SET GLOBAL max_connections = ", most))
}

// A server that is killed forgets row locks, and not tokens; one that stands still
// for longer than the TTL costs the hold, whatever it does with it afterwards.
func testRowServerDies(t *testing.T, s, _ *servertest.Server) {
	run(t, adminOf(t, s), "SET GLOBAL innodb_flush_log_at_trx_commit = 0")
	a, b := rowLockerOn(t, s, nil), rowLockerOn(t, s, nil)
	key := uniqueKey(t)
	lease, err := a.Acquire(t.Context(), key, lock.WithTTL(2*time.Second))
	require.NoError(t, err)
	s.Freeze(t)
	require.ErrorIs(t, ended(t, lease), lock.ErrLost)
	s.Resume(t)
	next, err := b.Acquire(short(t, patience), key, lock.WithTTL(2*time.Second))
	require.NoError(t, err)
	assert.Greater(t, next.Token(), lease.Token())
	s.Kill(t)
	s.Restart(t, true)
	require.ErrorIs(t, ended(t, next), lock.ErrLost)
	last, err := a.Acquire(short(t, patience), key)
	require.NoError(t, err)
	assert.Greater(t, last.Token(), next.Token())
	require.NoError(t, last.Release(t.Context()))
}

// A key that was never granted has a record without a session: nobody holds it.
func TestRowRecordWithoutASession(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		b, admin := rowBackendOn(t, s, nil), adminOf(t, s)
		key := uniqueKey(t)
		run(t, admin, b.insertHolder(key))
		_, err := b.Inspect(t.Context(), key)
		require.ErrorIs(t, err, backend.ErrNotHeld)
		for _, token := range []uint64{0, 1} {
			require.ErrorIs(t, b.Revoke(t.Context(), key, token), backend.ErrNotHeld)
			require.ErrorIs(t, b.ForceRelease(t.Context(), key, token), backend.ErrNotHeld)
		}
		require.NoError(t, b.List(t.Context(), key, func(backend.Record) bool { panic("not reached") }))
	})
}
