package table

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
)

func tableOn(t testing.TB, db *sql.DB, opts Options) *Backend {
	t.Helper()
	b := backendtest.Opened(t, func() (*Backend, error) { return New(t.Context(), db, opts) })
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// sharedTable is a backend on the usual table of the server.
func sharedTable(t testing.TB, s *servertest.Server) (*Backend, *sql.DB) {
	t.Helper()
	db := mysqltest.UserPool(t, s, "")
	return tableOn(t, db, Options{}), db
}

// lockerOn is a Locker on the usual table of the server.
func lockerOn(t testing.TB, db *sql.DB, settings lock.Options) *lock.Client {
	t.Helper()
	return lockerOf(t, tableOn(t, db, Options{}), settings)
}

func lockerOf(t testing.TB, b *Backend, settings lock.Options) *lock.Client {
	t.Helper()
	l, err := lock.New(b, &settings)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

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
