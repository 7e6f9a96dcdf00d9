package mysqllock

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
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
	var conns []*sql.Conn
	for range 6 {
		conn, err := db.Conn(t.Context())
		require.NoError(t, err)
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		require.NoError(t, conn.Close())
	}
	admin := adminPool(t, from)
	execOn(t, admin, "SET GLOBAL read_only=ON")
	defer execOn(t, admin, "SET GLOBAL read_only=OFF")
	p.LeadTo(to.Addr())
	for name, l := range lockers {
		lease, err := l.Acquire(short(t, patience), key+name)
		require.NoError(t, err, name)
		require.NoError(t, lease.Release(t.Context()), name)
	}
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
