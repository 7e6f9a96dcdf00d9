package mysqllock

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
)

// After a planned switchover a Locker of a URL goes on with the new primary, although all
// its connections lead to the old one, and so does a Locker on a pool of the caller's.
func TestSwitchover(t *testing.T) {
	mysqltest.Disturbed(t, mysqltest.Disturbance{What: "is left", Test: testSwitchover})
}

func testSwitchover(t *testing.T, from, to *servertest.Server) {
	p, through := mysqltest.BehindProxy(t, from)
	lockers := map[string]lock.Locker{}
	for _, mode := range []string{"table", "row"} {
		there, err := lock.Open(t.Context(), to.URL()+"?mode="+mode, nil) // the tables are on both
		require.NoError(t, err)
		require.NoError(t, there.Close())
		l, err := lock.Open(t.Context(), from.URLAt(p.Addr())+"?mode="+mode, nil)
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		lockers[mode] = l
	}
	c, err := mysql.ParseDSN(servertest.MySQLDSN(from))
	require.NoError(t, err)
	through(c)
	db := mysqltest.Pool(t, c.FormatDSN(), "")
	db.SetMaxIdleConns(10)
	lockers["pool of the caller"] = lockerOn(t, db)
	key := backendtest.UniqueKey(t)
	for name, l := range lockers {
		// Several connections, all of them to the first server.
		var held []lock.Lease
		for i := range 6 {
			lease, err := l.Acquire(t.Context(), fmt.Sprint(key, name, i), lock.WithTTL(2*time.Minute))
			require.NoError(t, err, name)
			held = append(held, lease)
		}
		if name != "row" {
			require.NoError(t, guardedAtOnce(t.Context(), held), name)
		}
		for _, lease := range held {
			require.NoError(t, lease.Release(t.Context()), name)
		}
	}
	table := lockers["table"]
	kept, err := table.Acquire(t.Context(), key+"/kept", lock.WithTTL(2*time.Minute))
	require.NoError(t, err)
	admin := mysqltest.AdminPool(t, from)
	mysqltest.Exec(t, admin, "SET GLOBAL read_only=ON")
	defer mysqltest.Exec(t, admin, "SET GLOBAL read_only=OFF")
	copyRow(t, admin, mysqltest.AdminPool(t, to), kept.Key())
	p.LeadTo(to.Addr())
	// The first call meets an old connection, and finds its way; so does a renewal.
	first, err := table.TryAcquire(t.Context(), key+"/first")
	require.NoError(t, err, "after one refusal no old connection is used")
	require.NoError(t, first.Release(t.Context()))
	require.NoError(t, kept.Renew(t.Context()))
	require.NoError(t, kept.Release(t.Context()))
	for name, l := range lockers {
		lease, err := l.Acquire(backendtest.Short(t, mysqltest.Patience), key+name)
		require.NoError(t, err, name)
		require.NoError(t, lease.Release(t.Context()), name)
	}
}

// guardedAtOnce has a guarded write of each lease open at the same time, which takes a
// connection each.
func guardedAtOnce(ctx context.Context, leases []lock.Lease) error {
	if len(leases) == 0 {
		return nil
	}
	return Guarded(ctx, leases[0], func(ctx context.Context, _ *sql.Tx) error { return guardedAtOnce(ctx, leases[1:]) })
}

// tableColumnNames are all columns of the table.
const tableColumnNames = "lock_key,owner,token,hold_count,holds,note,created,updated,expires"

// copyRow does what replication would have done.
func copyRow(t *testing.T, from, to *sql.DB, key string) {
	t.Helper()
	values := make([]sql.RawBytes, strings.Count(tableColumnNames, ",")+1)
	scan, args := make([]any, len(values)), make([]any, len(values))
	for i := range values {
		scan[i] = &values[i]
	}
	rows, err := from.QueryContext(t.Context(), "SELECT "+tableColumnNames+" FROM locks WHERE lock_key=?", []byte(key))
	require.NoError(t, err)
	defer rows.Close()
	require.True(t, rows.Next(), "no row")
	require.NoError(t, rows.Scan(scan...))
	for i, v := range values {
		args[i] = []byte(v)
	}
	mysqltest.Exec(t, to, "INSERT INTO locks ("+tableColumnNames+") VALUES (?"+strings.Repeat(",?", len(args)-1)+")", args...)
}
