package mysqllock

import (
	"context"
	"database/sql/driver"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

// Forget removes what nobody holds, in more than one step, and leaves alone what is
// held; also on servers that don't know SKIP LOCKED,
// as MariaDB before 10.6.
func TestRowForget(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := adminOf(t, s)
		for name, connector := range map[string]driver.Connector{
			"new": rowConnector(t, s, nil), "old": olderServer{rowConnector(t, s, nil)},
		} {
			made, err := NewRowBackend(t.Context(), connector, nil)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, made.Close()) })
			b := made.(*rowBackend)
			prefix := uniqueKey(t) + "/"
			manyUsed(t, b, prefix, 2*forgetChunk+1)
			hold, _ := granted(t, b, request(prefix+"0007"))
			left := func(table string) int {
				return number(t, admin, "SELECT COUNT(*) FROM "+table+" WHERE LEFT(k, ?) = ?", len(prefix), []byte(prefix))
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
func manyUsed(t *testing.T, b *rowBackend, prefix string, n int) {
	t.Helper()
	hold, _ := granted(t, b, request(prefix+"0000"))
	require.NoError(t, b.Release(t.Context(), hold))
	for table, columns := range map[string]string{b.rows: "k", b.holders: "k,token,connection,session,ttl,since,label,host,pid"} {
		numbered(t, b.control, table, columns, hold.Key, prefix, n, "i>0")
	}
}

// Forget locks no row but those that it removes: other keys are granted beside it.
func TestRowForgetBesideOthers(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		opts := &RowOptions{Table: "rows_" + backend.NewID().Hex()[:12]}
		users := rowBackendOn(t, s, opts)
		prefix := uniqueKey(t) + "/"
		before, after := "!"+prefix, "~"+prefix
		used := func(key string) error {
			req := request(key)
			if _, err := users.Try(short(t, patience/2), req); err != nil {
				return err
			}
			return users.Release(t.Context(), backend.HoldOf(req))
		}
		for _, key := range []string{before, prefix + "1", prefix + "2", prefix[:len(prefix)-1] + "0", after} {
			require.NoError(t, used(key))
		}
		removals := 0
		b, err := NewRowBackend(t.Context(), removing{rowConnector(t, s, nil), func() {
			removals++
			for _, key := range []string{before, prefix[:len(prefix)-1] + "0", after, prefix[:len(prefix)-1]} {
				assert.NoError(t, used(key), key)
			}
		}}, opts)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		require.NoError(t, b.(*rowBackend).Forget(t.Context(), prefix))
		require.NotZero(t, removals)
	})
}

// removing makes connections that call a function after each removal of a row, in its
// transaction.
type removing struct {
	*ownConnector
	removed func()
}

func (c removing) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.ownConnector.Connect(ctx)
	return removingConn{plainConn{conn}, c.removed}, err
}

type removingConn struct {
	plainConn
	removed func()
}

func (c removingConn) ExecContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Result, error) {
	res, err := c.plainConn.ExecContext(ctx, q, args)
	if strings.HasPrefix(q, "DELETE") {
		// The server would take a long function for a client that was cut off.
		if _, err := c.plainConn.ExecContext(ctx, "SET SESSION wait_timeout = 600", nil); err != nil {
			return nil, err
		}
		c.removed()
	}
	return res, err
}

// olderServer makes connections to a server that does not know SKIP LOCKED.
type olderServer struct{ *ownConnector }

func (c olderServer) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.ownConnector.Connect(ctx)
	return olderConn{plainConn{conn}}, err
}

type olderConn struct{ plainConn }

func (c olderConn) QueryContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Rows, error) {
	if strings.Contains(q, "SKIP LOCKED") {
		return nil, &mysql.MySQLError{Number: codeNotUnderstood, Message: "You have an error in your SQL syntax"}
	}
	return c.plainConn.QueryContext(ctx, q, args)
}
