package table

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// splitter sends what reads to another table than what writes, like a proxy before a
// primary and a replica that has stopped. What locks goes to the primary.
type splitter struct {
	driver.Connector
	from, to string
	readOnly bool // the replica says so
}

func (s splitter) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := s.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &splitConn{mysqltest.PlainConn{Conn: conn}, s}, nil
}

type splitConn struct {
	mysqltest.PlainConn
	s splitter
}

func (c *splitConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if !strings.HasSuffix(query, " FOR UPDATE") {
		query = strings.ReplaceAll(query, "`"+c.s.from+"`", "`"+c.s.to+"`")
		if c.s.readOnly {
			query = strings.ReplaceAll(query, wire.Writable, "0")
		}
	}
	return c.PlainConn.QueryContext(ctx, query, args)
}

// Reads that come from elsewhere are named, soon and without many questions, and
// renewals don't depend on them.
func TestReadsFromElsewhere(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		for name, readOnly := range map[string]bool{"a replica that takes writes": false, "a read-only replica": true} {
			t.Run(name, func(t *testing.T) { testReadsFromElsewhere(t, s, readOnly) })
		}
	})
}

func testReadsFromElsewhere(t *testing.T, s *servertest.Server, readOnly bool) {
	db := mysqltest.UserPool(t, s, "")
	table, replica := mysqltest.OwnTable(t, db), mysqltest.OwnTable(t, db)
	plain := tableOn(t, db, Options{Table: table})
	var holds []backend.Hold
	for _, key := range []string{"a", "b", "c", "free"} {
		hold, _ := backendtest.Granted(t, plain, mysqltest.Request(key))
		require.NoError(t, plain.Release(t.Context(), hold))
	}
	mysqltest.Exec(t, db, "CREATE TABLE "+replica+" LIKE "+table)
	mysqltest.Exec(t, db, "INSERT INTO "+replica+" SELECT * FROM "+table)
	for _, key := range []string{"a", "b", "c", "new"} {
		hold, _ := backendtest.Granted(t, plain, mysqltest.Request(key))
		holds = append(holds, hold)
	}
	released, _ := backendtest.Granted(t, plain, mysqltest.Request("new and free"))
	require.NoError(t, plain.Release(t.Context(), released))
	cfg, err := mysql.ParseDSN(servertest.MySQLDSN(s))
	require.NoError(t, err)
	connector, err := wire.NewConnector(cfg, 0)
	require.NoError(t, err)
	pool := sql.OpenDB(splitter{connector, table, replica, readOnly})
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	pool.SetMaxOpenConns(1)
	split := tableOn(t, pool, Options{Table: table})
	for _, key := range []string{"a", "new"} {
		before := questions(t, pool)
		_, err = split.Try(t.Context(), mysqltest.Request(key))
		require.ErrorIs(t, err, backend.ErrUnavailable, key)
		require.ErrorContains(t, err, "another server answers the reads", key)
		require.LessOrEqual(t, questions(t, pool)-before-1, 16, key)
	}
	for i, r := range split.RenewBatch(t.Context(), holds) {
		require.NoError(t, r.Err, i)
		require.NotZero(t, r.Validity.For, i)
	}
	for _, hold := range holds {
		v, err := split.Renew(t.Context(), hold)
		require.NoError(t, err, hold.Key)
		require.NotZero(t, v.For, hold.Key)
	}
	for _, key := range []string{"free", "new and free", "never used"} {
		hold, _ := backendtest.Granted(t, split, mysqltest.Request(key))
		require.NoError(t, split.Release(t.Context(), hold), key)
	}
}

// virtualTable and virtualRow are backends in virtual time.
type virtualTable struct{ *Backend }

func (virtualTable) Clock() backend.Clock { return backend.RuntimeClock() }

func exhaustedTable(t *testing.T) backend.Backend {
	db := sql.OpenDB(mysqltest.IdleConnector{})
	db.SetMaxOpenConns(1)
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()); require.NoError(t, db.Close()) })
	b, err := newBackend(db, "")
	require.NoError(t, err)
	b.clock = backend.RuntimeClock()
	return virtualTable{b}
}

// The connections of a URL wait for a row about as long as their answer is waited for, so that no
// key is granted long after its caller has gone.
func TestNoGrantAfterGivingUp(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		u, err := backend.ParseURL(s.URL() + "?table=" + mysqltest.OwnTable(t, mysqltest.UserPool(t, s, "")))
		require.NoError(t, err)
		settings, err := wire.ReadURL(u, backend.OpenConfig{TTL: mysqltest.TTL})
		require.NoError(t, err)
		b, err := Open(t.Context(), settings)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		db := mysqltest.UserPool(t, s, "")
		hold, g := backendtest.Granted(t, b, mysqltest.Request("k"))
		require.NoError(t, b.Release(t.Context(), hold))
		onLockedRow(t, db, b.table, "k", func() {
			_, err := b.Try(backendtest.Short(t, 300*time.Millisecond), mysqltest.Request("k"))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			// MySQL looks once a second for waits that have lasted long enough.
			admin := mysqltest.AdminPool(t, s)
			backendtest.Eventually(t, "the server has ended the statement", func() bool {
				return mysqltest.Number(t, admin, "SELECT COUNT(*) FROM information_schema.processlist WHERE id<>CONNECTION_ID() AND LOCATE(?, info)>0", b.table) == 0
			})
		})
		_, next := backendtest.Granted(t, b, mysqltest.Request("k"))
		require.Greater(t, next.Token, g.Token)

		l, err := lock.New(b, nil)
		require.NoError(t, err)
		lease, err := l.Acquire(t.Context(), "guarded")
		require.NoError(t, err)
		require.NoError(t, Guarded(t.Context(), lease, func(ctx context.Context, tx *sql.Tx) error {
			var own, general int
			require.NoError(t, tx.QueryRowContext(ctx, "SELECT @@SESSION.innodb_lock_wait_timeout, @@GLOBAL.innodb_lock_wait_timeout").Scan(&own, &general))
			require.Equal(t, general, own, "the work waits as others do")
			return nil
		}))
		require.Equal(t, 1, mysqltest.Number(t, b.db, "SELECT @@SESSION.innodb_lock_wait_timeout"))
		require.NoError(t, l.Close())
	})
}

func TestExhaustedPoolIsNoUnknownOutcome(t *testing.T) {
	t.Parallel()
	mysqltest.Exhausted(t, exhaustedTable)
}
