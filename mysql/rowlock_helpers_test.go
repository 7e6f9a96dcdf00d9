package mysqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/servertest"
)

// onBoth runs a test on a MariaDB and on a MySQL.
func onBoth(t *testing.T, f func(t *testing.T, s *servertest.Server)) {
	t.Parallel()
	for name, shared := range map[string]func(servertest.TB) *servertest.Server{
		"MariaDB": servertest.SharedMariaDB, "MySQL": servertest.SharedMySQL,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, shared(t))
		})
	}
}

// onEach runs a test on a MariaDB and on a MySQL that nobody else uses.
func onEach(t *testing.T, f func(t *testing.T, s *servertest.Server), opts ...servertest.Option) {
	t.Parallel()
	for name, start := range map[string]func(servertest.TB, ...servertest.Option) *servertest.Server{
		"MariaDB": servertest.MariaDB, "MySQL": servertest.MySQL,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, start(t, opts...))
		})
	}
}

// behindProxy is a proxy before the server, and the change of a configuration that
// leads through it.
func behindProxy(t testing.TB, s *servertest.Server) (*servertest.TCPProxy, func(*mysql.Config)) {
	t.Helper()
	p := servertest.Proxy(t, s.Addr())
	return p, func(c *mysql.Config) { c.Addr = p.Addr() }
}

func isMariaDB(t testing.TB, s *servertest.Server) bool {
	t.Helper()
	return strings.Contains(s.Version(), "MariaDB")
}

// rowConnector is one as users make it, for the account of the tests.
func rowConnector(t testing.TB, s *servertest.Server, change func(*mysql.Config)) *ownConnector {
	t.Helper()
	cfg, err := mysql.ParseDSN(servertest.MySQLDSN(s))
	require.NoError(t, err)
	cfg.Logger = &mysql.NopLogger{}
	if change != nil {
		change(cfg)
	}
	c, err := mysql.NewConnector(cfg)
	require.NoError(t, err)
	return &ownConnector{c}
}

// rowOwnConnector is one whose connections can be cut.
func rowOwnConnector(t testing.TB, s *servertest.Server, change func(*mysql.Config)) *ownConnector {
	t.Helper()
	cfg, err := mysql.ParseDSN(servertest.MySQLDSN(s))
	require.NoError(t, err)
	cfg.Logger = &mysql.NopLogger{}
	if change != nil {
		change(cfg)
	}
	c, err := NewConnector(cfg)
	require.NoError(t, err)
	return &ownConnector{c}
}

// rowConnectorWith is a connector of a DSN with parameters.
func rowConnectorWith(t testing.TB, s *servertest.Server, params string) *ownConnector {
	t.Helper()
	cfg, err := mysql.ParseDSN(servertest.MySQLDSN(s) + "?" + params)
	require.NoError(t, err)
	cfg.Logger = &mysql.NopLogger{}
	c, err := mysql.NewConnector(cfg)
	require.NoError(t, err)
	return &ownConnector{c}
}

func rowBackendOn(t testing.TB, s *servertest.Server, opts *RowOptions) *rowBackend {
	t.Helper()
	b, err := NewRowBackend(t.Context(), rowConnector(t, s, nil), opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b.(*rowBackend)
}

func rowLockerOn(t testing.TB, s *servertest.Server, opts *RowOptions) lock.Locker {
	t.Helper()
	l, err := NewRow(t.Context(), rowConnector(t, s, nil), opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// adminOf is a pool with all rights.
func adminOf(t testing.TB, s *servertest.Server) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", servertest.MySQLAdminDSN(s))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// run executes a statement and requires it.
func run(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), query, args...)
	require.NoError(t, err, query)
}

// number is the one number that a query returns.
func number(t testing.TB, db *sql.DB, query string, args ...any) int {
	t.Helper()
	var n int
	require.NoError(t, db.QueryRowContext(t.Context(), query, args...).Scan(&n), query)
	return n
}

// connectionOf is the server's number of the connection that holds the key.
func connectionOf(t testing.TB, db *sql.DB, key string) int {
	t.Helper()
	return number(t, db, "SELECT connection FROM lock_rows_holders WHERE k = ?", key)
}

// statementsOn counts the statements of anybody that are under way and name the key.
func statementsOn(t testing.TB, db *sql.DB, key string) int {
	t.Helper()
	return number(t, db, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE ? AND ID <> CONNECTION_ID()",
		"%"+strings.Trim(literal(key), "x'")+"% FOR UPDATE%")
}

// table makes a table for the work of one test and returns its name.
func workTable(t testing.TB, db *sql.DB) string {
	t.Helper()
	name := fmt.Sprintf("work_%d_%d", time.Now().UnixNano(), keys.Add(1))
	run(t, db, "CREATE TABLE "+name+" (id INT PRIMARY KEY, n INT NOT NULL) ENGINE=InnoDB")
	run(t, db, "INSERT INTO "+name+" VALUES (1, 0), (2, 0)")
	t.Cleanup(func() { _, _ = db.ExecContext(context.Background(), "DROP TABLE "+name) })
	return name
}

// ended waits for the end of a lease and returns its cause, which tells whether it was
// noticed or the time was over.
func ended(t testing.TB, l lock.Lease) error {
	t.Helper()
	select {
	case <-l.Context().Done():
	case <-time.After(patience):
		require.Fail(t, "the lease has not ended")
	}
	return context.Cause(l.Context())
}

// waitsForRow returns when a statement of the connection waits for a row.
func waitsForRow(t testing.TB, admin *sql.DB, connection int) {
	t.Helper()
	eventually(t, "the statement waits for a row", func() bool {
		return number(t, admin, "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_mysql_thread_id = ? AND trx_state = 'LOCK WAIT'", connection) == 1
	})
}

// underWay returns when the server carries out a statement that begins with the text.
func underWay(t testing.TB, admin *sql.DB, text string) {
	t.Helper()
	eventually(t, "the statement is under way", func() bool {
		return number(t, admin, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE ? AND ID <> CONNECTION_ID()", text+"%") == 1
	})
}

// renewals is an observer and the renewals that it has been told of.
func renewals() (lock.Observer, <-chan lock.Event) {
	events := make(chan lock.Event, 1000)
	return func(_ context.Context, e lock.Event) {
		if e.Kind == lock.EventRenewal {
			events <- e
		}
	}, events
}

// plainConn is a connection of the driver, for those that do something to its
// statements.
type plainConn struct{ driver.Conn }

func (c plainConn) IsValid() bool { return c.Conn.(driver.Validator).IsValid() }

func (c plainConn) ResetSession(ctx context.Context) error {
	return c.Conn.(driver.SessionResetter).ResetSession(ctx)
}

func (c plainConn) QueryContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, q, args)
}

func (c plainConn) ExecContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Result, error) {
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, q, args)
}
