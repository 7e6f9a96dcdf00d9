package mysqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
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
	return &splitConn{conn.(*cutConn), s}, nil
}

type splitConn struct {
	*cutConn
	s splitter
}

func (c *splitConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if !strings.HasSuffix(query, " FOR UPDATE") {
		query = strings.ReplaceAll(query, "`"+c.s.from+"`", "`"+c.s.to+"`")
		if c.s.readOnly {
			query = strings.ReplaceAll(query, writable, "0")
		}
	}
	return c.cutConn.QueryContext(ctx, query, args)
}

// Reads that come from elsewhere are named, soon and without many questions, and
// renewals don't depend on them.
func TestReadsFromElsewhere(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		for name, readOnly := range map[string]bool{"a replica that takes writes": false, "a read-only replica": true} {
			t.Run(name, func(t *testing.T) { testReadsFromElsewhere(t, s, readOnly) })
		}
	})
}

func testReadsFromElsewhere(t *testing.T, s *servertest.Server, readOnly bool) {
	db := userPool(t, s, "")
	table, replica := ownTable(t, db), ownTable(t, db)
	plain := tableOn(t, db, &Options{Table: table})
	var holds []backend.Hold
	for _, key := range []string{"a", "b", "c", "free"} {
		hold, _ := granted(t, plain, request(key))
		require.NoError(t, plain.Release(t.Context(), hold))
	}
	execOn(t, db, "CREATE TABLE "+replica+" LIKE "+table)
	execOn(t, db, "INSERT INTO "+replica+" SELECT * FROM "+table)
	for _, key := range []string{"a", "b", "c", "new"} {
		hold, _ := granted(t, plain, request(key))
		holds = append(holds, hold)
	}
	released, _ := granted(t, plain, request("new and free"))
	require.NoError(t, plain.Release(t.Context(), released))
	cfg, err := mysql.ParseDSN(servertest.MySQLDSN(s))
	require.NoError(t, err)
	connector, err := NewConnector(cfg)
	require.NoError(t, err)
	pool := sql.OpenDB(splitter{connector, table, replica, readOnly})
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	pool.SetMaxOpenConns(1)
	split := tableOn(t, pool, &Options{Table: table})
	for _, key := range []string{"a", "new"} {
		before := questions(t, pool)
		_, err = split.Try(t.Context(), request(key))
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
		hold, _ := granted(t, split, request(key))
		require.NoError(t, split.Release(t.Context(), hold), key)
	}
}

// A pool without a free connection is told as that: nothing was sent, and the pool can be
// made larger. Nobody must fear that the key was granted. Time is virtual here: what is
// told depends on which of two timers is first, and no server is asked.
func TestExhaustedPoolIsNoUnknownOutcome(t *testing.T) {
	t.Parallel()
	for name, exhausted := range map[string]func(t *testing.T) backend.Backend{"table": exhaustedTable, "row": exhaustedRow} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, err := lock.New(exhausted(t), nil)
				require.NoError(t, err)
				defer l.Close()
				for what, get := range map[string]func(context.Context, string, ...lock.Option) (lock.Lease, error){
					"TryAcquire": l.TryAcquire, "Acquire": l.Acquire,
				} {
					for limit := 50 * time.Millisecond; limit < time.Minute; limit *= 2 {
						_, err := get(short(t, limit), "k")
						require.ErrorIs(t, err, lock.ErrUnavailable, "%s, %s", what, limit)
						require.NotErrorIs(t, err, lock.ErrOutcomeUnknown, "%s, %s", what, limit)
						require.ErrorContains(t, err, "make the pool larger", "%s, %s", what, limit)
					}
				}
			})
		})
	}
}

// virtualTable and virtualRow are backends in virtual time.
type virtualTable struct{ *tableBackend }

func (virtualTable) Clock() backend.Clock { return backend.RuntimeClock() }

type virtualRow struct{ *rowBackend }

func (virtualRow) Clock() backend.Clock { return backend.RuntimeClock() }

func exhaustedTable(t *testing.T) backend.Backend {
	db := sql.OpenDB(idleConnector{})
	db.SetMaxOpenConns(1)
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()); require.NoError(t, db.Close()) })
	b, err := newTable(db, nil)
	require.NoError(t, err)
	b.clock = backend.RuntimeClock()
	return virtualTable{b}
}

func exhaustedRow(t *testing.T) backend.Backend {
	statements, err := newRowStatements(defaultRowTable)
	require.NoError(t, err)
	b := &rowBackend{
		rowStatements: statements, clock: backend.RuntimeClock(), control: sql.OpenDB(idleConnector{}), holds: map[backend.ID]*rowHold{},
	}
	b.life, b.endLife = context.WithCancel(t.Context())
	b.sessions = newRowSessions(idleConnector{}, 1, true, b.clock)
	require.NoError(t, b.sessions.takeSlot(t.Context()))
	return virtualRow{b}
}

// idleConnector makes connections that nobody uses.
type idleConnector struct{}

func (idleConnector) Connect(context.Context) (driver.Conn, error) { return idleConn{}, nil }

func (idleConnector) Driver() driver.Driver { return &mysql.MySQLDriver{} }

type idleConn struct{ driver.Conn }

func (idleConn) Close() error { return nil }

// The connections of a URL wait for a row about as long as their answer is waited for, so that no
// key is granted long after its caller has gone.
func TestNoGrantAfterGivingUp(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		u, err := backend.ParseURL(s.URL() + "?table=" + ownTable(t, userPool(t, s, "")))
		require.NoError(t, err)
		opened, err := Opener(t.Context(), u, backend.OpenConfig{TTL: ttl})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, opened.Close()) })
		b := opened.(*tableBackend)
		db := userPool(t, s, "")
		hold, g := granted(t, b, request("k"))
		require.NoError(t, b.Release(t.Context(), hold))
		onLockedRow(t, db, b.table, "k", func() {
			_, err := b.Try(short(t, 300*time.Millisecond), request("k"))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			// MySQL looks once a second for waits that have lasted long enough.
			admin := adminPool(t, s)
			eventually(t, "the server has ended the statement", func() bool {
				return number(t, admin, "SELECT COUNT(*) FROM information_schema.processlist WHERE id<>CONNECTION_ID() AND LOCATE(?, info)>0", b.table) == 0
			})
		})
		_, next := granted(t, b, request("k"))
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
		require.Equal(t, 1, number(t, b.db, "SELECT @@SESSION.innodb_lock_wait_timeout"))
		require.NoError(t, l.Close())
	})
}
