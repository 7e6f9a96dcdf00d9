package mysqltest

import (
	"context"
	"database/sql"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
)

// Exec executes a statement and requires it.
func Exec(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), query, args...)
	require.NoError(t, err, query)
}

// Number is the one number that a query returns.
func Number(t testing.TB, db *sql.DB, query string, args ...any) int {
	t.Helper()
	var n int
	require.NoError(t, db.QueryRowContext(t.Context(), query, args...).Scan(&n), query)
	return n
}

// WaitsForRow returns when a statement of the connection waits for a row.
func WaitsForRow(t testing.TB, admin *sql.DB, connection int) {
	t.Helper()
	backendtest.Eventually(t, "the statement waits for a row", func() bool {
		return Number(t, admin, "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_mysql_thread_id = ? AND trx_state = 'LOCK WAIT'", connection) == 1
	})
}

// UnderWay returns when the server carries out a statement that begins with the text.
func UnderWay(t testing.TB, admin *sql.DB, text string) {
	t.Helper()
	backendtest.Eventually(t, "the statement is under way", func() bool {
		return Number(t, admin, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE ? AND ID <> CONNECTION_ID()", text+"%") == 1
	})
}

// Deadlocks counts those that the server has seen since it started.
func Deadlocks(t testing.TB, admin *sql.DB) int {
	t.Helper()
	return Number(t, admin, "SELECT MAX(count) FROM information_schema.innodb_metrics WHERE name='lock_deadlocks'")
}

// OwnTable is the name of a table for this test alone, which is dropped at its end.
func OwnTable(t testing.TB, db *sql.DB) string {
	t.Helper()
	name := "t_" + backend.NewID().Hex()
	t.Cleanup(func() {
		_, err := db.ExecContext(context.Background(), "DROP TABLE IF EXISTS "+name)
		require.NoError(t, err)
	})
	return name
}

// WorkTable makes a table for the work of one test and returns its name.
func WorkTable(t testing.TB, db *sql.DB) string {
	t.Helper()
	name := "work_" + backend.NewID().Hex()
	Exec(t, db, "CREATE TABLE "+name+" (id INT PRIMARY KEY, n INT NOT NULL) ENGINE=InnoDB")
	Exec(t, db, "INSERT INTO "+name+" VALUES (1, 0), (2, 0)")
	t.Cleanup(func() { _, _ = db.ExecContext(context.Background(), "DROP TABLE "+name) })
	return name
}

// Numbered adds copies of the row of a key, under the prefix and the numbers below n that
// meet the condition, with four digits. The first column is the key.
func Numbered(t testing.TB, db *sql.DB, table, columns, key, prefix string, n int, condition string) {
	t.Helper()
	first, _, _ := strings.Cut(columns, ",")
	Exec(t, db, "INSERT INTO "+table+" ("+columns+")"+
		" WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i+1 FROM n WHERE i<?)"+
		" SELECT CONCAT(?, LPAD(i, 4, '0'))"+strings.TrimPrefix(columns, first)+" FROM n JOIN "+table+" WHERE "+first+"=? AND "+condition,
		n-1, prefix, []byte(key))
}

// RawRow is the row as an operator sees it.
func RawRow(t testing.TB, db *sql.DB, table, key string) map[string]string {
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

// AlterStatement finds the statement that an error proposes.
var AlterStatement = regexp.MustCompile(`(?m)^ALTER TABLE [^;]*`)
