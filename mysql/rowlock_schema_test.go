package mysqllock

import (
	"context"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

var alterStatement = regexp.MustCompile(`(?m)^ALTER TABLE [^;]*`)

// olderRowTables makes the tables without some columns, with a token in them, and
// returns their name.
func olderRowTables(t *testing.T, s *servertest.Server, without ...string) string {
	t.Helper()
	admin := adminOf(t, s)
	table := "rows_" + backend.NewID().Hex()[:12]
	t.Cleanup(func() { _, _ = adminOf(t, s).Exec("DROP TABLE " + table + ", " + table + "_holders") })
	st, err := newRowStatements(table)
	require.NoError(t, err)
	for _, q := range st.ddl() {
		run(t, admin, q)
	}
	run(t, admin, st.insertHolder("k"))
	run(t, admin, "INSERT INTO "+table+" VALUES ('k')")
	run(t, admin, "UPDATE "+table+"_holders SET token = 9007199254740000")
	for _, c := range without {
		run(t, admin, "ALTER TABLE "+table+"_holders DROP COLUMN "+c)
	}
	return table
}

// nextTokenIn takes and releases the key on the tables, which must exist.
func nextTokenIn(t *testing.T, s *servertest.Server, table string) uint64 {
	t.Helper()
	b := rowBackendOn(t, s, &RowOptions{Table: table, NoCreate: true})
	hold, g := granted(t, b, request("k"))
	_, err := b.Renew(t.Context(), hold)
	require.NoError(t, err)
	require.NoError(t, b.Release(t.Context(), hold))
	return g.Token
}

// A table of an earlier version gets its new column by whoever may add it, and the
// error has the statement where nobody may.
func TestRowTablesOfAnEarlierVersion(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		open := func(c *ownConnector, o RowOptions) error {
			b, err := NewRowBackend(t.Context(), c, &o)
			if err == nil {
				require.NoError(t, b.Close())
			}
			return err
		}
		admin := adminOf(t, s)

		table := olderRowTables(t, s, "revoked")
		err := open(rowConnector(t, s, nil), RowOptions{Table: table, NoCreate: true})
		require.ErrorIs(t, err, backend.ErrPermanent)
		alter := alterStatement.FindString(err.Error())
		require.Equal(t, "ALTER TABLE `"+table+"_holders` ADD COLUMN revoked BIGINT UNSIGNED NOT NULL DEFAULT 0", alter)
		require.NotContains(t, err.Error(), "CREATE TABLE", "one statement, the one that helps")
		var limited mysql.Config
		dsn, err := mysql.ParseDSN(limitedUser(t, s, "SELECT, INSERT, UPDATE ON mortise.*"))
		require.NoError(t, err)
		limited = *dsn
		err = open(rowConnector(t, s, func(c *mysql.Config) { c.User, c.Passwd = limited.User, limited.Passwd }), RowOptions{Table: table})
		require.ErrorIs(t, err, backend.ErrPermanent)
		require.Equal(t, alter, alterStatement.FindString(err.Error()))
		require.NotContains(t, err.Error(), "secret")
		run(t, admin, alter)
		require.EqualValues(t, 9007199254740001, nextTokenIn(t, s, table), "tokens go on")

		table = olderRowTables(t, s, "revoked")
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { assert.NoError(t, open(rowConnector(t, s, nil), RowOptions{Table: table})) })
		}
		wg.Wait()
		require.EqualValues(t, 9007199254740001, nextTokenIn(t, s, table))
		// Programs of the earlier version go on beside ours.
		run(t, admin, "INSERT INTO "+table+"_holders (k, token, connection, session, ttl, since, label, host, pid) VALUES ('old', 7, 0, '', 0, UTC_TIMESTAMP(6), '', '', 0)")

		// What no version has made is not touched.
		table = olderRowTables(t, s, "revoked", "label", "since")
		err = open(rowConnector(t, s, nil), RowOptions{Table: table})
		require.ErrorIs(t, err, backend.ErrPermanent)
		alter = alterStatement.FindString(err.Error())
		for _, c := range []string{"revoked", "label", "since"} {
			require.Contains(t, alter, "ADD COLUMN "+c+" ")
		}
		run(t, admin, alter)
		require.EqualValues(t, 9007199254740001, nextTokenIn(t, s, table))
	})
}

// An ALTER TABLE that has to wait for others keeps everybody else waiting too: it is
// given up.
func TestRowTablesInUse(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		table := olderRowTables(t, s, "revoked")
		tx, err := adminOf(t, s).Begin()
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		_, err = tx.Exec("UPDATE " + table + "_holders SET pid = 1")
		require.NoError(t, err)
		_, err = NewRow(short(t, patience), rowConnector(t, s, nil), &RowOptions{Table: table})
		require.ErrorIs(t, err, backend.ErrUnavailable)
		require.Contains(t, err.Error(), "ALTER TABLE")
		require.NotErrorIs(t, err, context.DeadlineExceeded, "it was given up, and not cut off")
		require.NoError(t, tx.Rollback())
		rowBackendOn(t, s, &RowOptions{Table: table})
	})
}

// The statement that the error about a table prints makes it one that we take.
func TestTableWithoutAColumn(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		db := userPool(t, s, "")
		for _, c := range tableColumns[1:] {
			table := ownTable(t, db)
			execOn(t, db, tableDDL(table))
			b := tableOn(t, db, &Options{Table: table})
			hold, g := granted(t, b, request("k"))
			require.NoError(t, b.Release(t.Context(), hold))
			execOn(t, db, "ALTER TABLE "+table+" DROP COLUMN "+c.name)
			_, err := NewTable(t.Context(), db, &Options{Table: table})
			require.ErrorIs(t, err, backend.ErrPermanent)
			require.ErrorContains(t, err, "column "+c.name+" is missing")
			alter := alterStatement.FindString(err.Error())
			require.True(t, strings.HasPrefix(alter, "ALTER TABLE `"+table+"` ADD COLUMN "+c.name+" "), err.Error())
			execOn(t, db, alter)
			b = tableOn(t, db, &Options{Table: table, NoCreate: true})
			hold, next := granted(t, b, request("k"))
			require.Greater(t, next.Token, g.Token)
			require.NoError(t, b.Release(t.Context(), hold))
		}
		table := ownTable(t, db)
		execOn(t, db, strings.Replace(tableDDL(table), "VARBINARY(512)", "VARBINARY(255)", 1))
		_, err := NewTable(t.Context(), db, &Options{Table: table})
		require.ErrorIs(t, err, backend.ErrPermanent)
		execOn(t, db, alterStatement.FindString(err.Error()))
		tableOn(t, db, &Options{Table: table, NoCreate: true})
	})
}
