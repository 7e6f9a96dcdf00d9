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
// primary and a replica that has stopped.
type splitter struct {
	driver.Connector
	from, to string
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
	return c.cutConn.QueryContext(ctx, strings.ReplaceAll(query, "`"+c.s.from+"`", "`"+c.s.to+"`"), args)
}

// Reads that come from elsewhere are named, soon and without many questions, and the
// renewals of a batch don't depend on them.
func TestReadsFromElsewhere(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		db := userPool(t, s, "")
		table, replica := ownTable(t, db), ownTable(t, db)
		plain := tableOn(t, db, &Options{Table: table})
		var holds []backend.Hold
		for _, key := range []string{"a", "b", "c"} {
			hold, _ := granted(t, plain, request(key))
			require.NoError(t, plain.Release(t.Context(), hold))
		}
		execOn(t, db, "CREATE TABLE "+replica+" LIKE "+table)
		execOn(t, db, "INSERT INTO "+replica+" SELECT * FROM "+table)
		for _, key := range []string{"a", "b", "c"} {
			hold, _ := granted(t, plain, request(key))
			holds = append(holds, hold)
		}
		cfg, err := mysql.ParseDSN(servertest.MySQLDSN(s))
		require.NoError(t, err)
		connector, err := NewConnector(cfg)
		require.NoError(t, err)
		pool := sql.OpenDB(splitter{connector, table, replica})
		t.Cleanup(func() { require.NoError(t, pool.Close()) })
		pool.SetMaxOpenConns(1)
		split := tableOn(t, pool, &Options{Table: table})
		before := questions(t, pool)
		_, err = split.Try(t.Context(), request("a"))
		require.ErrorIs(t, err, backend.ErrUnavailable)
		require.ErrorContains(t, err, "another server answers the reads")
		require.LessOrEqual(t, questions(t, pool)-before-1, 10)
		for i, r := range split.RenewBatch(t.Context(), holds) {
			require.NoError(t, r.Err, i)
			require.NotZero(t, r.Validity.For, i)
		}
	})
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
