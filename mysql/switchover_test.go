package mysqllock

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

// After a planned switchover a Locker of a URL goes on with the new primary, although all
// its connections lead to the old one, and so does a Locker on a pool of the caller's.
func testSwitchover(t *testing.T, from, to *servertest.Server) {
	p, through := behindProxy(t, from)
	lockers := map[string]lock.Locker{}
	for _, mode := range []string{"table", "row"} {
		there, err := lock.Open(t.Context(), to.URL()+"?mode="+mode) // the tables are on both
		require.NoError(t, err)
		require.NoError(t, there.Close())
		l, err := lock.Open(t.Context(), from.URLAt(p.Addr())+"?mode="+mode)
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		lockers[mode] = l
	}
	c, err := mysql.ParseDSN(servertest.MySQLDSN(from))
	require.NoError(t, err)
	through(c)
	db := poolOf(t, c.FormatDSN(), "")
	db.SetMaxIdleConns(10)
	lockers["pool of the caller"] = lockerOn(t, db, nil)
	key := uniqueKey(t)
	for name, l := range lockers {
		// Several connections, all of them to the first server.
		var held []lock.Lease
		for i := range 6 {
			lease, err := l.Acquire(t.Context(), fmt.Sprint(key, name, i))
			require.NoError(t, err, name)
			held = append(held, lease)
		}
		for _, lease := range held {
			require.NoError(t, lease.Release(t.Context()), name)
		}
	}
	table := lockers["table"]
	opened, ok := backend.As[*tableBackend](table.(interface{ Backend() backend.Backend }).Backend())
	require.True(t, ok)
	fillPool(t, db, 6)
	fillPool(t, opened.db, 6)
	kept, err := table.Acquire(t.Context(), key+"/kept")
	require.NoError(t, err)
	admin := adminPool(t, from)
	execOn(t, admin, "SET GLOBAL read_only=ON")
	defer execOn(t, admin, "SET GLOBAL read_only=OFF")
	copyRow(t, admin, adminPool(t, to), kept.Key())
	p.LeadTo(to.Addr())
	// The first call meets an old connection, and finds its way; so does a renewal.
	first, err := table.TryAcquire(t.Context(), key+"/first")
	require.NoError(t, err, "after one refusal no old connection is used")
	require.NoError(t, first.Release(t.Context()))
	require.NoError(t, kept.Renew(t.Context()))
	require.NoError(t, kept.Release(t.Context()))
	for name, l := range lockers {
		lease, err := l.Acquire(short(t, patience), key+name)
		require.NoError(t, err, name)
		require.NoError(t, lease.Release(t.Context()), name)
	}
}

// fillPool makes idle connections.
func fillPool(t *testing.T, db *sql.DB, n int) {
	t.Helper()
	var conns []*sql.Conn
	for range n {
		conn, err := db.Conn(t.Context())
		require.NoError(t, err)
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		require.NoError(t, conn.Close())
	}
}

// copyRow does what replication would have done.
func copyRow(t *testing.T, from, to *sql.DB, key string) {
	t.Helper()
	values := make([]sql.RawBytes, strings.Count(columns, ",")+1)
	scan, args := make([]any, len(values)), make([]any, len(values))
	for i := range values {
		scan[i] = &values[i]
	}
	rows, err := from.QueryContext(t.Context(), "SELECT "+columns+" FROM locks WHERE lock_key=?", []byte(key))
	require.NoError(t, err)
	defer rows.Close()
	require.True(t, rows.Next(), "no row")
	require.NoError(t, rows.Scan(scan...))
	for i, v := range values {
		args[i] = []byte(v)
	}
	execOn(t, to, "INSERT INTO locks ("+columns+") VALUES (?"+strings.Repeat(",?", len(args)-1)+")", args...)
}

// A connection that is given back at an age is not used again.
func TestConnectionsGetOld(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		cfg, err := mysql.ParseDSN(servertest.MySQLDSN(s))
		require.NoError(t, err)
		connector, err := newCuttable(cfg, time.Millisecond)
		require.NoError(t, err)
		db := sql.OpenDB(connector)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		id := func() int { return number(t, db, "SELECT CONNECTION_ID()+SLEEP(0.01)") }
		first := id()
		require.NotEqual(t, first, id())
	})
}
