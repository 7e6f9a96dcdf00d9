package mysqllock

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

// poolOf is a pool with the settings of the DSN. The parameters are added to it.
func poolOf(t testing.TB, dsn, params string) *sql.DB {
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
		if err := db.Close(); !errors.Is(err, driver.ErrBadConn) { // its server may have died
			require.NoError(t, err)
		}
	})
	return db
}

// userPool and adminPool are pools of the two accounts that servers have for tests.
func userPool(t testing.TB, s *servertest.Server, params string) *sql.DB {
	t.Helper()
	return poolOf(t, servertest.MySQLDSN(s), params)
}

func adminPool(t testing.TB, s *servertest.Server) *sql.DB {
	t.Helper()
	return poolOf(t, servertest.MySQLAdminDSN(s), "")
}

func tableOn(t testing.TB, db *sql.DB, opts *Options) *tableBackend {
	t.Helper()
	b, err := NewTableBackend(t.Context(), db, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b.(*tableBackend)
}

// sharedTable is a backend on the usual table of the server.
func sharedTable(t testing.TB, s *servertest.Server) (*tableBackend, *sql.DB) {
	t.Helper()
	db := userPool(t, s, "")
	return tableOn(t, db, nil), db
}

// ownTable is the name of a table for this test alone, which is dropped at its end.
func ownTable(t testing.TB, db *sql.DB) string {
	t.Helper()
	name := fmt.Sprintf("t%d_%s", keys.Add(1), backend.NewID().Hex()[:8])
	t.Cleanup(func() {
		_, err := db.ExecContext(context.Background(), "DROP TABLE IF EXISTS "+name)
		require.NoError(t, err)
	})
	return name
}

func lockerOn(t testing.TB, db *sql.DB, opts *Options) lock.Locker {
	t.Helper()
	l, err := NewTable(t.Context(), db, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

func execOn(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), query, args...)
	require.NoError(t, err, query)
}

// numbered adds copies of the row of a key, under the prefix and the numbers below n that
// meet the condition, with four digits. The first column is the key.
func numbered(t testing.TB, db *sql.DB, table, columns, key, prefix string, n int, condition string) {
	t.Helper()
	first, _, _ := strings.Cut(columns, ",")
	execOn(t, db, "INSERT INTO "+table+" ("+columns+")"+
		" WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i+1 FROM n WHERE i<?)"+
		" SELECT CONCAT(?, LPAD(i, 4, '0'))"+strings.TrimPrefix(columns, first)+" FROM n JOIN "+table+" WHERE "+first+"=? AND "+condition,
		n-1, prefix, []byte(key))
}

// rawRow is the row as an operator sees it.
func rawRow(t testing.TB, db *sql.DB, table, key string) map[string]string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "SELECT * FROM "+table+" WHERE lock_key=?", []byte(key))
	require.NoError(t, err)
	defer rows.Close()
	names, err := rows.Columns()
	require.NoError(t, err)
	require.True(t, rows.Next(), "no row")
	values := make([]sql.RawBytes, len(names))
	scan := make([]any, len(names))
	for i := range values {
		scan[i] = &values[i]
	}
	require.NoError(t, rows.Scan(scan...))
	out := map[string]string{}
	for i, n := range names {
		out[n] = string(values[i])
	}
	return out
}

// logged is a logger and what it has written.
func logged() (*slog.Logger, func() string) {
	var mu sync.Mutex
	var buf bytes.Buffer
	write := writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return buf.Write(p)
	})
	return slog.New(slog.NewTextHandler(write, nil)), func() string {
		mu.Lock()
		defer mu.Unlock()
		return buf.String()
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// questions counts the statements that the pool sends, which must have one
// connection only.
func questions(t testing.TB, db *sql.DB) int {
	t.Helper()
	var name string
	var n int
	require.NoError(t, db.QueryRowContext(t.Context(), "SHOW SESSION STATUS LIKE 'Questions'").Scan(&name, &n))
	require.True(t, strings.EqualFold(name, "questions"))
	return n
}
