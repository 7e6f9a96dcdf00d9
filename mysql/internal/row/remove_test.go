package row

import (
	"context"
	"database/sql/driver"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// Forget removes what nobody holds, in more than one step, and leaves alone what is
// held; also on servers that don't know SKIP LOCKED,
// as MariaDB before 10.6.
func TestRowForget(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := mysqltest.AdminPool(t, s)
		for name, connector := range map[string]driver.Connector{
			"new": mysqltest.Connector(t, s, nil), "old": olderServer{mysqltest.Connector(t, s, nil)},
		} {
			made, err := New(t.Context(), connector, Options{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, made.Close()) })
			b := made
			prefix := backendtest.UniqueKey(t) + "/"
			manyUsed(t, b, prefix, 2*removeChunk+1)
			hold, _ := backendtest.Granted(t, b, mysqltest.Request(prefix+"0007"))
			left := func(table string) int {
				return mysqltest.Number(t, admin, "SELECT COUNT(*) FROM "+table+" WHERE LEFT(k, ?) = ?", len(prefix), []byte(prefix))
			}
			require.NoError(t, b.Forget(t.Context(), prefix), name)
			require.Equal(t, 1, left("lock_rows"), name)
			require.Equal(t, 1, left("lock_rows_holders"), name)
			_, err = b.Renew(t.Context(), hold)
			require.NoError(t, err)
			require.NoError(t, b.Release(t.Context(), hold))
			require.NoError(t, b.Forget(t.Context(), prefix), name)
			require.Zero(t, left("lock_rows"), name)
			require.ErrorIs(t, b.Forget(t.Context(), ""), backend.ErrInvalid)
		}
	})
}

// manyUsed makes the rows of keys that somebody has used, with four digits after the prefix.
func manyUsed(t *testing.T, b *Backend, prefix string, n int) {
	t.Helper()
	hold, _ := backendtest.Granted(t, b, mysqltest.Request(prefix+"0000"))
	require.NoError(t, b.Release(t.Context(), hold))
	for table, columns := range map[string]string{b.rows: "k", b.holders: "k,token,connection,session,ttl,since,label,host,pid"} {
		mysqltest.Numbered(t, b.control, table, columns, hold.Key, prefix, n, "i>0")
	}
}

// Forget locks no row but those that it removes: other keys are granted beside it.
func TestRowForgetBesideOthers(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		opts := Options{Table: "rows_" + backend.NewID().Hex()[:12]}
		users := backendOn(t, s, opts)
		prefix := backendtest.UniqueKey(t) + "/"
		before, after := "!"+prefix, "~"+prefix
		used := func(key string) error {
			req := mysqltest.Request(key)
			if _, err := users.Try(backendtest.Short(t, mysqltest.Patience/2), req); err != nil {
				return err
			}
			return users.Release(t.Context(), backend.HoldOf(req))
		}
		for _, key := range []string{before, prefix + "1", prefix + "2", prefix[:len(prefix)-1] + "0", after} {
			require.NoError(t, used(key))
		}
		removals := 0
		b, err := New(t.Context(), removing{mysqltest.Connector(t, s, nil), func() {
			removals++
			for _, key := range []string{before, prefix[:len(prefix)-1] + "0", after, prefix[:len(prefix)-1]} {
				assert.NoError(t, used(key), key)
			}
		}}, opts)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		require.NoError(t, b.Forget(t.Context(), prefix))
		require.NotZero(t, removals)
	})
}

// removing makes connections that call a function after each removal of a row, in its
// transaction.
type removing struct {
	*mysqltest.PlainConnector
	removed func()
}

func (c removing) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.PlainConnector.Connect(ctx)
	return removingConn{mysqltest.PlainConn{Conn: conn}, c.removed}, err
}

type removingConn struct {
	mysqltest.PlainConn
	removed func()
}

func (c removingConn) ExecContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Result, error) {
	res, err := c.PlainConn.ExecContext(ctx, q, args)
	if strings.HasPrefix(q, "DELETE") {
		// The server would take a long function for a client that was cut off.
		if _, err := c.PlainConn.ExecContext(ctx, "SET SESSION wait_timeout = 600", nil); err != nil {
			return nil, err
		}
		c.removed()
	}
	return res, err
}

// olderServer makes connections to a server that does not know SKIP LOCKED.
type olderServer struct{ *mysqltest.PlainConnector }

func (c olderServer) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.PlainConnector.Connect(ctx)
	return olderConn{mysqltest.PlainConn{Conn: conn}}, err
}

type olderConn struct{ mysqltest.PlainConn }

func (c olderConn) QueryContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Rows, error) {
	if strings.Contains(q, "SKIP LOCKED") {
		return nil, &mysql.MySQLError{Number: wire.CodeNotUnderstood, Message: "You have an error in your SQL syntax"}
	}
	return c.PlainConn.QueryContext(ctx, q, args)
}

// Rows of row locks that nobody has used for long are removed, and no others. Tokens go on
// to rise, and waiters get their keys.
func TestCleanupRows(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		table := "rows_" + backend.NewID().Hex()[:8]
		opts := Options{Table: table}
		b := backendOn(t, s, opts)
		admin := mysqltest.AdminPool(t, s)
		last := map[string]uint64{}
		const old = 250 // more than one chunk
		manyUsed(t, b, "old/", old)
		for _, key := range []string{"old/0000", "old/0249"} {
			hold, g := backendtest.Granted(t, b, mysqltest.Request(key))
			require.NoError(t, b.Release(t.Context(), hold))
			last[key] = g.Token
		}
		held, _ := backendtest.Granted(t, b, mysqltest.Request("held"))
		ahead, _ := backendtest.Granted(t, b, mysqltest.Request("ahead"))
		require.NoError(t, b.Release(t.Context(), ahead))
		mysqltest.Exec(t, admin, "UPDATE "+table+"_holders SET since=since-INTERVAL 2 DAY, token=token-86400000000*2 WHERE k<>x'00'")
		mysqltest.Exec(t, admin, "UPDATE "+table+"_holders SET token=9000000000000000 WHERE k='ahead'")
		recent, _ := backendtest.Granted(t, b, mysqltest.Request("recent"))
		require.NoError(t, b.Release(t.Context(), recent))
		clean := func(age time.Duration) (int, error) {
			return Cleanup(t.Context(), mysqltest.Connector(t, s, nil), opts, age)
		}
		_, err := clean(0)
		require.ErrorIs(t, err, backend.ErrInvalid)
		n, err := clean(72 * time.Hour)
		require.NoError(t, err)
		require.Zero(t, n)
		for range 2 { // counting changes nothing
			n, err = b.Cleanup(t.Context(), 24*time.Hour, true)
			require.NoError(t, err)
			require.Equal(t, old, n)
		}
		n, err = clean(24 * time.Hour)
		require.NoError(t, err)
		require.Equal(t, old, n)
		for _, of := range []string{table, table + "_holders"} {
			require.Equal(t, 3, mysqltest.Number(t, admin, "SELECT COUNT(*) FROM "+of+" WHERE k <> x'00'"), "the held one, the one ahead of the clock and the recent one")
		}
		_, err = b.Renew(t.Context(), held)
		require.NoError(t, err)
		for key := range last {
			hold, g := backendtest.Granted(t, b, mysqltest.Request(key))
			require.Greater(t, g.Token, last[key])
			require.NoError(t, b.Release(t.Context(), hold))
		}
	})
}

// A client that dies before the first grant of a key leaves its row. Who holds it is left alone.
func TestRowCleanupOfUngranted(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		b := backendOn(t, s, Options{Table: "rows_" + backend.NewID().Hex()[:12]})
		require.NoError(t, b.create(t.Context(), "left"))
		require.NoError(t, b.create(t.Context(), "locked"))
		used := mysqltest.Request("used")
		hold, _ := backendtest.Granted(t, b, used)
		require.NoError(t, b.Release(t.Context(), hold))
		locked, err := b.sessions.open(t.Context(), used.TTL)
		require.NoError(t, err)
		defer locked.close()
		require.NoError(t, b.lockRow(t.Context(), locked, "locked", true))
		n, err := b.Cleanup(t.Context(), time.Hour, true)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		n, err = b.Cleanup(t.Context(), time.Hour, false)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, 2, mysqltest.Number(t, b.control, "SELECT COUNT(*) FROM "+b.rows+" WHERE k IN ('used', 'locked')"))
		require.Equal(t, 2, mysqltest.Number(t, b.control, "SELECT COUNT(*) FROM "+b.rows))
	})
}
