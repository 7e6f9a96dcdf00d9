package row

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// cuttableConnector is one whose connections can be cut.
func cuttableConnector(t testing.TB, s *servertest.Server, change func(*mysql.Config)) *mysqltest.PlainConnector {
	t.Helper()
	cfg, err := mysql.ParseDSN(servertest.MySQLDSN(s))
	require.NoError(t, err)
	cfg.Logger = &mysql.NopLogger{}
	if change != nil {
		change(cfg)
	}
	c, err := wire.NewConnector(cfg, 0)
	require.NoError(t, err)
	return &mysqltest.PlainConnector{Connector: c}
}

func backendOn(t testing.TB, s *servertest.Server, opts Options) *Backend {
	t.Helper()
	b := backendtest.Opened(t, func() (*Backend, error) { return New(t.Context(), mysqltest.Connector(t, s, nil), opts) })
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// newLocker is a Locker on a new backend.
func newLocker(ctx context.Context, connector driver.Connector, opts Options, settings lock.Options) (*lock.Client, error) {
	b, err := New(ctx, connector, opts)
	if err != nil {
		return nil, err
	}
	return lock.New(b, &settings)
}

func lockerOn(t testing.TB, s *servertest.Server, opts Options, settings lock.Options) *lock.Client {
	t.Helper()
	l, err := newLocker(t.Context(), mysqltest.Connector(t, s, nil), opts, settings)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// connectionOf is the server's number of the connection that holds the key.
func connectionOf(t testing.TB, db *sql.DB, key string) int {
	t.Helper()
	return mysqltest.Number(t, db, "SELECT connection FROM lock_rows_holders WHERE k = ?", key)
}

// statementsOn counts the statements of anybody that are under way and lock the row of the key.
func statementsOn(t testing.TB, db *sql.DB, key string) int {
	t.Helper()
	return statementsLike(t, db, "%"+digits(key)+"% FOR UPDATE%")
}

// statementsLike counts the statements of anybody that are under way and have the pattern.
func statementsLike(t testing.TB, db *sql.DB, pattern string) int {
	t.Helper()
	return mysqltest.Number(t, db, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE ? AND ID <> CONNECTION_ID()", pattern)
}

// digits are the key as it stands in statements.
func digits(key string) string { return strings.Trim(literal(key), "x'") }

// recordOfNobody makes the record of a key that was never granted, as earlier versions do.
func recordOfNobody(st statements, key string) string {
	return "INSERT INTO " + st.holders + " (k, token, revoked, connection, session, ttl, since, label, host, pid) VALUES (" +
		literal(key) + ", 0, 0, 0, '', 0, UTC_TIMESTAMP(6), '', '', 0)"
}
