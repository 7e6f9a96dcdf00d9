package row

import (
	"context"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
)

// olderRowTables makes the tables without some columns, with a token in them, and
// returns their name.
func olderRowTables(t *testing.T, s *servertest.Server, without ...string) string {
	t.Helper()
	admin := mysqltest.AdminPool(t, s)
	table := "rows_" + backend.NewID().Hex()[:12]
	t.Cleanup(func() { _, _ = mysqltest.AdminPool(t, s).Exec("DROP TABLE " + table + ", " + table + "_holders") })
	st, err := newStatements(table)
	require.NoError(t, err)
	for _, q := range st.ddl() {
		mysqltest.Exec(t, admin, q)
	}
	mysqltest.Exec(t, admin, recordOfNobody(st, "k"))
	mysqltest.Exec(t, admin, "INSERT INTO "+table+" VALUES ('k')")
	mysqltest.Exec(t, admin, "UPDATE "+table+"_holders SET token = 9007199254740000")
	for _, c := range without {
		mysqltest.Exec(t, admin, "ALTER TABLE "+table+"_holders DROP COLUMN "+c)
	}
	return table
}

// nextTokenIn takes and releases the key on the tables, which must exist.
func nextTokenIn(t *testing.T, s *servertest.Server, table string) uint64 {
	t.Helper()
	b := backendOn(t, s, Options{Table: table, NoCreate: true})
	hold, g := backendtest.Granted(t, b, mysqltest.Request("k"))
	_, err := b.Renew(t.Context(), hold)
	require.NoError(t, err)
	require.NoError(t, b.Release(t.Context(), hold))
	return g.Token
}

// A table of an earlier version gets its new column by whoever may add it, and the
// error has the statement where nobody may.
func TestRowTablesOfAnEarlierVersion(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		open := func(c *mysqltest.PlainConnector, o Options) error {
			b, err := New(t.Context(), c, o)
			if err == nil {
				require.NoError(t, b.Close())
			}
			return err
		}
		admin := mysqltest.AdminPool(t, s)

		table := olderRowTables(t, s, "revoked")
		err := open(mysqltest.Connector(t, s, nil), Options{Table: table, NoCreate: true})
		require.ErrorIs(t, err, backend.ErrPermanent)
		alter := mysqltest.AlterStatement.FindString(err.Error())
		require.Equal(t, "ALTER TABLE `"+table+"_holders` ADD COLUMN revoked BIGINT UNSIGNED NOT NULL DEFAULT 0", alter)
		require.NotContains(t, err.Error(), "CREATE TABLE", "one statement, the one that helps")
		var limited mysql.Config
		dsn, err := mysql.ParseDSN(mysqltest.LimitedUser(t, s, "SELECT, INSERT, UPDATE ON mortise.*"))
		require.NoError(t, err)
		limited = *dsn
		err = open(mysqltest.Connector(t, s, func(c *mysql.Config) { c.User, c.Passwd = limited.User, limited.Passwd }), Options{Table: table})
		require.ErrorIs(t, err, backend.ErrPermanent)
		require.Equal(t, alter, mysqltest.AlterStatement.FindString(err.Error()))
		require.NotContains(t, err.Error(), "secret")
		mysqltest.Exec(t, admin, alter)
		require.EqualValues(t, 9007199254740001, nextTokenIn(t, s, table), "tokens go on")

		table = olderRowTables(t, s, "revoked")
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { assert.NoError(t, open(mysqltest.Connector(t, s, nil), Options{Table: table})) })
		}
		wg.Wait()
		require.EqualValues(t, 9007199254740001, nextTokenIn(t, s, table))
		// Programs of the earlier version go on beside ours.
		mysqltest.Exec(t, admin, "INSERT INTO "+table+"_holders (k, token, connection, session, ttl, since, label, host, pid) VALUES ('old', 7, 0, '', 0, UTC_TIMESTAMP(6), '', '', 0)")

		// What no version has made is not touched.
		table = olderRowTables(t, s, "revoked", "label", "since")
		err = open(mysqltest.Connector(t, s, nil), Options{Table: table})
		require.ErrorIs(t, err, backend.ErrPermanent)
		alter = mysqltest.AlterStatement.FindString(err.Error())
		for _, c := range []string{"revoked", "label", "since"} {
			require.Contains(t, alter, "ADD COLUMN "+c+" ")
		}
		mysqltest.Exec(t, admin, alter)
		require.EqualValues(t, 9007199254740001, nextTokenIn(t, s, table))
	})
}

// An ALTER TABLE that has to wait for others keeps everybody else waiting too: it is
// given up.
func TestRowTablesInUse(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		table := olderRowTables(t, s, "revoked")
		tx, err := mysqltest.AdminPool(t, s).Begin()
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		_, err = tx.Exec("UPDATE " + table + "_holders SET pid = 1")
		require.NoError(t, err)
		_, err = newLocker(backendtest.Short(t, mysqltest.Patience), mysqltest.Connector(t, s, nil), Options{Table: table}, lock.Options{})
		require.ErrorIs(t, err, backend.ErrUnavailable)
		require.Contains(t, err.Error(), "ALTER TABLE")
		require.NotErrorIs(t, err, context.DeadlineExceeded, "it was given up, and not cut off")
		require.NoError(t, tx.Rollback())
		backendOn(t, s, Options{Table: table})
	})
}

// A server that writes statements into its binary log is refused, with what to set.
func testRowStatementBinlog(t *testing.T, s, _ *servertest.Server) {
	admin := mysqltest.AdminPool(t, s)
	mysqltest.Exec(t, admin, "SET GLOBAL binlog_format=STATEMENT")
	defer mysqltest.Exec(t, admin, "SET GLOBAL binlog_format=ROW")
	_, err := New(t.Context(), mysqltest.Connector(t, s, nil), Options{})
	require.ErrorIs(t, err, backend.ErrPermanent)
	require.ErrorContains(t, err, "binlog_format")
	require.ErrorContains(t, err, "ROW")
}
