package mysqltest

import (
	"database/sql"
	"database/sql/driver"
	"fmt"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

// PlainConnector hides everything but the methods of driver.Connector, for those that are
// put around it.
type PlainConnector struct{ driver.Connector }

// Connector is one as users make it, for the account of the tests.
func Connector(t testing.TB, s *servertest.Server, change func(*mysql.Config)) *PlainConnector {
	t.Helper()
	cfg, err := mysql.ParseDSN(servertest.MySQLDSN(s))
	require.NoError(t, err)
	cfg.Logger = &mysql.NopLogger{}
	if change != nil {
		change(cfg)
	}
	c, err := mysql.NewConnector(cfg)
	require.NoError(t, err)
	return &PlainConnector{c}
}

// ConnectorWith is a connector of a DSN with parameters.
func ConnectorWith(t testing.TB, s *servertest.Server, params string) *PlainConnector {
	t.Helper()
	cfg, err := mysql.ParseDSN(servertest.MySQLDSN(s) + "?" + params)
	require.NoError(t, err)
	cfg.Logger = &mysql.NopLogger{}
	c, err := mysql.NewConnector(cfg)
	require.NoError(t, err)
	return &PlainConnector{c}
}

// Pool is a pool with the settings of the DSN. The parameters are added to it.
func Pool(t testing.TB, dsn, params string) *sql.DB {
	t.Helper()
	if params != "" {
		dsn += "?" + params
	}
	c, err := mysql.ParseDSN(dsn)
	require.NoError(t, err)
	c.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(c)
	require.NoError(t, err)
	db := sql.OpenDB(connector)
	t.Cleanup(func() {
		// Its server may have died; the driver has an error without a name for that, too.
		if err := db.Close(); err != nil {
			require.ErrorContains(t, err, "bad connection")
		}
	})
	return db
}

// UserPool is a pool of the account that locks use in tests.
func UserPool(t testing.TB, s *servertest.Server, params string) *sql.DB {
	t.Helper()
	return Pool(t, servertest.MySQLDSN(s), params)
}

// AdminPool is a pool of the account with all rights.
func AdminPool(t testing.TB, s *servertest.Server) *sql.DB {
	t.Helper()
	return Pool(t, servertest.MySQLAdminDSN(s), "")
}

// LimitedUser makes a user with a password and rights on the database, and returns
// the DSN for it.
func LimitedUser(t *testing.T, s *servertest.Server, rights ...string) string {
	t.Helper()
	admin := AdminPool(t, s)
	name := "u" + backend.NewID().Hex()[:12]
	Exec(t, admin, "CREATE USER "+name+"@'%' IDENTIFIED BY 'pass-secret'")
	t.Cleanup(func() { _, _ = admin.Exec("DROP USER " + name + "@'%'") })
	for _, r := range rights {
		Exec(t, admin, "GRANT "+r+" TO "+name+"@'%'")
	}
	return fmt.Sprintf("%s:pass-secret@tcp(%s)/mortise", name, s.Addr())
}

// StrangeSessions are parameters of a DSN with which a program may open its pool.
func StrangeSessions(t testing.TB, s *servertest.Server) map[string]string {
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
	if IsMariaDB(t, s) {
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
