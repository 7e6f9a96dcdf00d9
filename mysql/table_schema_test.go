package mysqllock

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

// limitedUser makes a user with a password and rights on the database, and returns
// the DSN for it.
func limitedUser(t *testing.T, s *servertest.Server, rights ...string) string {
	t.Helper()
	admin := adminPool(t, s)
	name := "u" + backend.NewID().Hex()[:12]
	execOn(t, admin, "CREATE USER "+name+"@'%' IDENTIFIED BY 'pass-secret'")
	t.Cleanup(func() { _, _ = admin.Exec("DROP USER " + name + "@'%'") })
	for _, r := range rights {
		execOn(t, admin, "GRANT "+r+" TO "+name+"@'%'")
	}
	return fmt.Sprintf("%s:pass-secret@tcp(%s)/mortise", name, s.Addr())
}

func TestTableIsCreatedOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		db := userPool(t, s, "")
		name := ownTable(t, db)
		_, err := NewTable(t.Context(), db, &Options{Table: name, NoCreate: true})
		require.ErrorIs(t, err, backend.ErrPermanent)
		require.ErrorContains(t, err, "CREATE TABLE IF NOT EXISTS `"+name+"`")
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				_, err := NewTableBackend(t.Context(), db, &Options{Table: name})
				assert.NoError(t, err)
			})
		}
		wg.Wait()
		tableOn(t, db, &Options{Table: name, NoCreate: true})
		tableOn(t, db, &Options{Table: "mortise." + name})
	})
}

// The statement that the errors print makes a table that we take.
func TestDDL(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		db := userPool(t, s, "")
		opts := &Options{Table: ownTable(t, db), NoCreate: true}
		ddl, err := TableDDL(opts)
		require.NoError(t, err)
		execOn(t, db, ddl)
		b := tableOn(t, db, opts)
		hold, _ := granted(t, b, request(strings.Repeat("k", backend.MaxKey)))
		require.NoError(t, b.Release(t.Context(), hold))
		_, err = TableDDL(&Options{Table: "a`b"})
		require.ErrorIs(t, err, backend.ErrInvalid)
	})
}

func TestWrongTables(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		db := userPool(t, s, "")
		good := tableDDL("x")
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
				table := ownTable(t, db)
				execOn(t, db, strings.Replace(strings.Replace(good, "`x`", table, 1), c.from, c.to, 1))
				_, err := NewTable(t.Context(), userPool(t, s, ""), &Options{Table: table})
				if name == "more needed" { // where sql_mode is strict, it cannot be inserted
					require.NoError(t, err, "INSERT IGNORE takes it")
					_, err = NewTableBackend(t.Context(), db, &Options{Table: table})
					require.NoError(t, err)
					b := tableOn(t, db, &Options{Table: table})
					_, err = b.Try(t.Context(), request("k"))
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
			table := ownTable(t, db)
			tableOn(t, db, nil)
			execOn(t, db, "CREATE VIEW v_"+table+" AS SELECT * FROM locks")
			t.Cleanup(func() { _, _ = db.Exec("DROP VIEW v_" + table) })
			_, err := NewTable(t.Context(), db, &Options{Table: "v_" + table})
			require.ErrorIs(t, err, backend.ErrPermanent)
		})
	})
}

func TestMissingRights(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		db := userPool(t, s, "")
		table := ownTable(t, db)
		missing := ownTable(t, db)
		tableOn(t, db, &Options{Table: table})
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
					execOn(t, db, "CREATE TABLE IF NOT EXISTS nothing_that_exists (n INT)")
				}
				t.Parallel()
				limited := poolOf(t, limitedUser(t, s, c.rights...), "")
				_, err := NewTable(t.Context(), limited, &Options{Table: c.table})
				require.ErrorIs(t, err, backend.ErrPermanent)
				require.ErrorContains(t, err, c.text)
				require.ErrorContains(t, err, "CREATE TABLE IF NOT EXISTS")
				require.NotContains(t, err.Error(), "secret")
			})
		}
		t.Run("just enough", func(t *testing.T) {
			t.Parallel()
			limited := poolOf(t, limitedUser(t, s, "SELECT, INSERT, UPDATE ON mortise."+table), "")
			b := tableOn(t, limited, &Options{Table: table})
			hold, _ := granted(t, b, request("just enough"))
			require.NoError(t, b.Release(t.Context(), hold))
			_, err := b.Cleanup(t.Context(), 1)
			require.ErrorIs(t, err, backend.ErrPermanent)
			require.ErrorContains(t, err, "DELETE")
		})
	})
}

// A right that is taken away, and a table that is dropped, while a Locker is open.
func TestTableGoesAway(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		db := userPool(t, s, "")
		table := ownTable(t, db)
		b := tableOn(t, db, &Options{Table: table})
		hold, _ := granted(t, b, request("k"))
		execOn(t, db, "DROP TABLE "+table)
		_, err := b.Renew(t.Context(), hold)
		require.ErrorIs(t, err, backend.ErrPermanent)
		require.ErrorContains(t, err, "open the Locker again")
		_, err = b.Try(t.Context(), request("k"))
		require.ErrorIs(t, err, backend.ErrPermanent)
		tableOn(t, db, &Options{Table: table})
		_, err = b.Renew(t.Context(), hold)
		require.ErrorIs(t, err, backend.ErrNotHeld)
		_, g := granted(t, b, request("k"))
		require.Greater(t, g.Token, hold.Token, "the clock is the floor when the table was lost")
		require.ErrorContains(t, fmt.Errorf("%w", keyError(t.Context(), "k", serverError(codeTableDenied))), "SELECT, INSERT and UPDATE")
	})
}

func TestBadOpenings(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		for name, c := range map[string]struct {
			url  string
			want error
			text string
		}{
			"wrong password":   {"mysql://mortise:wrong-secret@" + s.Addr() + "/mortise", backend.ErrPermanent, "check user and password"},
			"unknown database": {"mysql://mortise:" + s.Password() + "@" + s.Addr() + "/nothing_here", backend.ErrPermanent, "existing database"},
			"no server":        {"mysql://mortise:wrong-secret@127.0.0.1:1/mortise", backend.ErrUnavailable, "connection refused"},
			"no TLS":           {"mysql://mortise:wrong-secret@" + s.Addr() + "/mortise?tls=true", backend.ErrPermanent, "tls"},
			"no table":         {s.URL() + "?table=nothing_here&create=false", backend.ErrPermanent, "CREATE TABLE"},
		} {
			_, err := lock.Open(t.Context(), c.url)
			require.ErrorIs(t, err, c.want, name)
			require.Contains(t, strings.ToLower(err.Error()), strings.ToLower(c.text), name)
			require.NotContains(t, err.Error(), "secret", name)
			require.NotContains(t, err.Error(), s.Password(), name)
		}
		_, err := lock.Open(t.Context(), s.URL(), lock.WithDefaultTTL(1))
		require.ErrorIs(t, err, backend.ErrInvalid)
		_, err = NewTable(t.Context(), nil, nil)
		require.ErrorIs(t, err, backend.ErrInvalid)
		_, err = NewTable(t.Context(), userPool(t, s, ""), &Options{Table: "a b"})
		require.ErrorIs(t, err, backend.ErrInvalid)
		_, err = NewTable(t.Context(), userPool(t, s, "autocommit=0"), nil)
		require.ErrorIs(t, err, backend.ErrInvalid)
		require.ErrorContains(t, err, "autocommit")
		_, err = NewTable(t.Context(), userPool(t, s, "completion_type=1"), nil)
		require.ErrorIs(t, err, backend.ErrInvalid)
		require.ErrorContains(t, err, "completion_type")
		readOnly := "transaction_read_only=1"
		if isMariaDB(t, s) {
			readOnly = "tx_read_only=1"
		}
		_, err = NewTable(t.Context(), userPool(t, s, readOnly), nil)
		require.ErrorIs(t, err, backend.ErrUnavailable)
		l := lockerOn(t, userPool(t, s, ""), nil)
		_, err = l.TryAcquire(t.Context(), strings.Repeat("k", backend.MaxKey+1))
		require.ErrorIs(t, err, backend.ErrInvalid)
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
		doubts, err := checkTableServer(vars)
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
	admin := adminPool(t, s)
	execOn(t, admin, "SET GLOBAL binlog_format=STATEMENT")
	defer execOn(t, admin, "SET GLOBAL binlog_format=ROW")
	db := userPool(t, s, "")
	_, err := NewTable(t.Context(), db, nil)
	require.ErrorIs(t, err, backend.ErrPermanent)
	require.ErrorContains(t, err, "set binlog_format to ROW or MIXED")
	_, err = CleanupTable(t.Context(), db, nil, time.Hour)
	require.ErrorContains(t, err, "set binlog_format to ROW or MIXED")
	_, err = NewRow(t.Context(), rowConnector(t, s, nil), nil)
	require.ErrorIs(t, err, lock.ErrPermanent)
	require.ErrorContains(t, err, "binlog_format")
	require.ErrorContains(t, err, "ROW")
	b := tableOn(t, poolOf(t, servertest.MySQLAdminDSN(s), "binlog_format=MIXED"), nil)
	hold, _ := granted(t, b, request(uniqueKey(t)))
	_, err = b.Renew(t.Context(), hold)
	require.NoError(t, err)
}
