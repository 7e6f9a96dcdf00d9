package table

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

func TestTableIsCreatedOnce(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		name := mysqltest.OwnTable(t, db)
		_, err := New(t.Context(), db, Options{Table: name, NoCreate: true})
		require.ErrorIs(t, err, backend.ErrPermanent)
		require.ErrorContains(t, err, "CREATE TABLE IF NOT EXISTS `"+name+"`")
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				_, err := New(t.Context(), db, Options{Table: name})
				assert.NoError(t, err)
			})
		}
		wg.Wait()
		tableOn(t, db, Options{Table: name, NoCreate: true})
		tableOn(t, db, Options{Table: "mortise." + name})
	})
}

// The statement that the errors print makes a table that we take.
func TestDDL(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		opts := Options{Table: mysqltest.OwnTable(t, db), NoCreate: true}
		ddl, err := DDL(opts.Table)
		require.NoError(t, err)
		mysqltest.Exec(t, db, ddl)
		b := tableOn(t, db, opts)
		hold, _ := backendtest.Granted(t, b, mysqltest.Request(strings.Repeat("k", backend.MaxKey)))
		require.NoError(t, b.Release(t.Context(), hold))
		_, err = DDL("a`b")
		require.ErrorIs(t, err, backend.ErrInvalid)
	})
}

func TestWrongTables(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		good := ddl("x")
		for name, c := range map[string]struct{ from, to, text string }{
			"column missing":  {"  token      BIGINT          NOT NULL COMMENT 'last fencing token',\n", "", "column token is missing"},
			"key too short":   {"VARBINARY(512)", "VARBINARY(255)", "column lock_key is varbinary(255)"},
			"key of text":     {"VARBINARY(512)", "VARCHAR(512) CHARACTER SET utf8mb4", "column lock_key is varchar(512)"},
			"token unsigned":  {"BIGINT  ", "BIGINT UNSIGNED", "column token is bigint"},
			"whole seconds":   {"expires    DATETIME(6)", "expires    DATETIME", "column expires is datetime"},
			"local time":      {"expires    DATETIME(6)    ", "expires    TIMESTAMP(6)", "column expires is timestamp(6)"},
			"holds too short": {"VARBINARY(3392)", "VARBINARY(100)", "column holds is varbinary(100)"},
			"other key":       {"PRIMARY KEY (lock_key)", "PRIMARY KEY (lock_key, token)", "primary key"},
			"no key":          {",\n  PRIMARY KEY (lock_key)", "", "primary key"},
			"MyISAM":          {"ENGINE=InnoDB", "ENGINE=MyISAM", "engine is MyISAM"},
			"MEMORY":          {"ENGINE=InnoDB", "ENGINE=MEMORY", "engine is MEMORY"},
			"more needed":     {"  PRIMARY KEY", "  more INT NOT NULL,\n  PRIMARY KEY", "more"},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				require.Contains(t, good, c.from)
				table := mysqltest.OwnTable(t, db)
				mysqltest.Exec(t, db, strings.Replace(strings.Replace(good, "`x`", table, 1), c.from, c.to, 1))
				_, err := New(t.Context(), mysqltest.UserPool(t, s, ""), Options{Table: table})
				if name == "more needed" { // where sql_mode is strict, it cannot be inserted
					require.NoError(t, err, "INSERT IGNORE takes it")
					_, err = New(t.Context(), db, Options{Table: table})
					require.NoError(t, err)
					b := tableOn(t, db, Options{Table: table})
					_, err = b.Try(t.Context(), mysqltest.Request("k"))
					require.ErrorIs(t, err, backend.ErrPermanent)
					return
				}
				require.ErrorIs(t, err, backend.ErrPermanent)
				require.ErrorContains(t, err, c.text)
				require.ErrorContains(t, err, "CREATE TABLE IF NOT EXISTS `"+table+"`")
			})
		}
		t.Run("view", func(t *testing.T) {
			t.Parallel()
			table := mysqltest.OwnTable(t, db)
			tableOn(t, db, Options{})
			mysqltest.Exec(t, db, "CREATE VIEW v_"+table+" AS SELECT * FROM locks")
			t.Cleanup(func() { _, _ = db.Exec("DROP VIEW v_" + table) })
			_, err := New(t.Context(), db, Options{Table: "v_" + table})
			require.ErrorIs(t, err, backend.ErrPermanent)
		})
	})
}

func TestMissingRights(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		table := mysqltest.OwnTable(t, db)
		missing := mysqltest.OwnTable(t, db)
		tableOn(t, db, Options{Table: table})
		for name, c := range map[string]struct {
			table  string
			rights []string
			text   string
		}{
			"no CREATE":           {missing, []string{"SELECT, INSERT, UPDATE ON mortise.*"}, "could not be created"},
			"no INSERT":           {table, []string{"SELECT, UPDATE ON mortise." + table}, "GRANT SELECT, INSERT, UPDATE"},
			"no UPDATE":           {table, []string{"SELECT, INSERT ON mortise." + table}, "GRANT SELECT, INSERT, UPDATE"},
			"no SELECT":           {table, []string{"UPDATE, INSERT ON mortise." + table}, "GRANT SELECT, INSERT, UPDATE"},
			"nothing on it":       {table, []string{"SELECT ON mortise.nothing_that_exists"}, "no rights on it"},
			"a column of another": {table, []string{"SELECT, INSERT ON mortise." + table, "UPDATE (note) ON mortise." + table}, "GRANT SELECT, INSERT, UPDATE"},
		} {
			t.Run(name, func(t *testing.T) {
				if name == "nothing on it" {
					mysqltest.Exec(t, db, "CREATE TABLE IF NOT EXISTS nothing_that_exists (n INT)")
				}
				t.Parallel()
				limited := mysqltest.Pool(t, mysqltest.LimitedUser(t, s, c.rights...), "")
				_, err := New(t.Context(), limited, Options{Table: c.table})
				require.ErrorIs(t, err, backend.ErrPermanent)
				require.ErrorContains(t, err, c.text)
				require.ErrorContains(t, err, "CREATE TABLE IF NOT EXISTS")
				require.NotContains(t, err.Error(), "secret")
			})
		}
		t.Run("just enough", func(t *testing.T) {
			t.Parallel()
			limited := mysqltest.Pool(t, mysqltest.LimitedUser(t, s, "SELECT, INSERT, UPDATE ON mortise."+table), "")
			b := tableOn(t, limited, Options{Table: table})
			hold, _ := backendtest.Granted(t, b, mysqltest.Request("just enough"))
			require.NoError(t, b.Release(t.Context(), hold))
			_, err := b.Cleanup(t.Context(), 1, false)
			require.ErrorIs(t, err, backend.ErrPermanent)
			require.ErrorContains(t, err, "DELETE")
		})
	})
}

// A right that is taken away, and a table that is dropped, while a Locker is open.
func TestTableGoesAway(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		table := mysqltest.OwnTable(t, db)
		b := tableOn(t, db, Options{Table: table})
		hold, _ := backendtest.Granted(t, b, mysqltest.Request("k"))
		mysqltest.Exec(t, db, "DROP TABLE "+table)
		_, err := b.Renew(t.Context(), hold)
		require.ErrorIs(t, err, backend.ErrPermanent)
		require.ErrorContains(t, err, "open the Locker again")
		_, err = b.Try(t.Context(), mysqltest.Request("k"))
		require.ErrorIs(t, err, backend.ErrPermanent)
		tableOn(t, db, Options{Table: table})
		_, err = b.Renew(t.Context(), hold)
		require.ErrorIs(t, err, backend.ErrNotHeld)
		_, g := backendtest.Granted(t, b, mysqltest.Request("k"))
		require.Greater(t, g.Token, hold.Token, "the clock is the floor when the table was lost")
		require.ErrorContains(t, fmt.Errorf("%w", wire.KeyError(t.Context(), "k", &mysql.MySQLError{Number: wire.CodeTableDenied})), "SELECT, INSERT and UPDATE")
	})
}

// What a server must be for the table, and what is doubtful about it.
func TestTableServers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		change  map[string]string
		refused error
		text    string
	}{
		{nil, nil, ""},
		{map[string]string{"autocommit": "OFF"}, backend.ErrInvalid, "autocommit"},
		{map[string]string{"completion_type": "CHAIN"}, backend.ErrInvalid, "completion_type is CHAIN"},
		{map[string]string{"log_bin": "ON", "binlog_format": "STATEMENT"}, backend.ErrPermanent, "set binlog_format to ROW or MIXED"},
		{map[string]string{"log_bin": "ON", "binlog_format": "MIXED"}, nil, ""},
		{map[string]string{"log_bin": "OFF", "binlog_format": "STATEMENT"}, nil, ""},
		{map[string]string{"log_bin": "ON", "sql_log_bin": "OFF", "binlog_format": "STATEMENT"}, nil, ""},
		{map[string]string{"super_read_only": "ON"}, backend.ErrUnavailable, "super_read_only"},
		{map[string]string{"innodb_read_only": "1"}, backend.ErrUnavailable, "innodb_read_only"},
		{map[string]string{"tx_read_only": "ON"}, backend.ErrUnavailable, "primary"},
		{map[string]string{"transaction_read_only": "ON"}, backend.ErrUnavailable, "primary"},
		{map[string]string{"read_only": "ON"}, backend.ErrUnavailable, "primary"},
		{map[string]string{"innodb_flush_log_at_trx_commit": "2"}, nil, "set innodb_flush_log_at_trx_commit to 1, it is 2"},
		{map[string]string{"innodb_flush_log_at_trx_commit": "0"}, nil, "it is 0"},
		{map[string]string{"wsrep_on": "ON"}, nil, "Galera"},
		{map[string]string{"group_replication_group_name": "g", "group_replication_single_primary_mode": "OFF"}, nil, "several primaries"},
		{map[string]string{"group_replication_group_name": "g", "group_replication_single_primary_mode": "ON"}, nil, ""},
	} {
		vars := map[string]string{"autocommit": "ON", "completion_type": "NO_CHAIN", "innodb_flush_log_at_trx_commit": "1"}
		maps.Copy(vars, c.change)
		doubts, err := checkServer(vars)
		switch {
		case c.refused != nil:
			require.ErrorIs(t, err, c.refused)
			require.ErrorContains(t, err, c.text)
		case c.text != "":
			require.NoError(t, err)
			require.Len(t, doubts, 1)
			require.Contains(t, doubts[0], c.text)
		default:
			require.NoError(t, err)
			require.Empty(t, doubts)
		}
	}
}

// A server that writes statements into its binary log is refused, with what to set, by the
// clean-up too; a session of another format is not.
func testStatementBinlog(t *testing.T, s, _ *servertest.Server) {
	admin := mysqltest.AdminPool(t, s)
	mysqltest.Exec(t, admin, "SET GLOBAL binlog_format=STATEMENT")
	defer mysqltest.Exec(t, admin, "SET GLOBAL binlog_format=ROW")
	db := mysqltest.UserPool(t, s, "")
	_, err := New(t.Context(), db, Options{})
	require.ErrorIs(t, err, backend.ErrPermanent)
	require.ErrorContains(t, err, "set binlog_format to ROW or MIXED")
	_, err = Cleanup(t.Context(), db, "", time.Hour)
	require.ErrorContains(t, err, "set binlog_format to ROW or MIXED")
	b := tableOn(t, mysqltest.Pool(t, servertest.MySQLAdminDSN(s), "binlog_format=MIXED"), Options{})
	hold, _ := backendtest.Granted(t, b, mysqltest.Request(backendtest.UniqueKey(t)))
	_, err = b.Renew(t.Context(), hold)
	require.NoError(t, err)
}

// The statement that the error about a table prints makes it one that we take.
func TestTableWithoutAColumn(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		for _, c := range tableColumns[1:] {
			table := mysqltest.OwnTable(t, db)
			mysqltest.Exec(t, db, ddl(table))
			b := tableOn(t, db, Options{Table: table})
			hold, g := backendtest.Granted(t, b, mysqltest.Request("k"))
			require.NoError(t, b.Release(t.Context(), hold))
			mysqltest.Exec(t, db, "ALTER TABLE "+table+" DROP COLUMN "+c.name)
			_, err := New(t.Context(), db, Options{Table: table})
			require.ErrorIs(t, err, backend.ErrPermanent)
			require.ErrorContains(t, err, "column "+c.name+" is missing")
			alter := mysqltest.AlterStatement.FindString(err.Error())
			require.True(t, strings.HasPrefix(alter, "ALTER TABLE `"+table+"` ADD COLUMN "+c.name+" "), err.Error())
			mysqltest.Exec(t, db, alter)
			b = tableOn(t, db, Options{Table: table, NoCreate: true})
			hold, next := backendtest.Granted(t, b, mysqltest.Request("k"))
			require.Greater(t, next.Token, g.Token)
			require.NoError(t, b.Release(t.Context(), hold))
		}
		table := mysqltest.OwnTable(t, db)
		mysqltest.Exec(t, db, strings.Replace(ddl(table), "VARBINARY(512)", "VARBINARY(255)", 1))
		_, err := New(t.Context(), db, Options{Table: table})
		require.ErrorIs(t, err, backend.ErrPermanent)
		mysqltest.Exec(t, db, mysqltest.AlterStatement.FindString(err.Error()))
		tableOn(t, db, Options{Table: table, NoCreate: true})
	})
}

func TestBadPools(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		_, err := New(t.Context(), nil, Options{})
		require.ErrorIs(t, err, backend.ErrInvalid)
		_, err = New(t.Context(), mysqltest.UserPool(t, s, ""), Options{Table: "a b"})
		require.ErrorIs(t, err, backend.ErrInvalid)
		_, err = New(t.Context(), mysqltest.UserPool(t, s, "autocommit=0"), Options{})
		require.ErrorIs(t, err, backend.ErrInvalid)
		require.ErrorContains(t, err, "autocommit")
		_, err = New(t.Context(), mysqltest.UserPool(t, s, "completion_type=1"), Options{})
		require.ErrorIs(t, err, backend.ErrInvalid)
		require.ErrorContains(t, err, "completion_type")
		readOnly := "transaction_read_only=1"
		if mysqltest.IsMariaDB(t, s) {
			readOnly = "tx_read_only=1"
		}
		_, err = New(t.Context(), mysqltest.UserPool(t, s, readOnly), Options{})
		require.ErrorIs(t, err, backend.ErrUnavailable)
	})
}
