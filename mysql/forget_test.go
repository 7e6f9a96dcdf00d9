package mysqllock

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"
	"testing"
	"time"

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
			for n := range 2*forgetChunk + 1 {
				for _, table := range []string{"lock_rows (k)", "lock_rows_holders (k, token, connection, session, ttl, since, label, host, pid)"} {
					rest := ""
					if strings.Contains(table, "holders") {
						rest = ", 1, 0, '', 0, '1970-01-01', '', '', 0"
					}
					run(t, admin, "INSERT INTO "+table+" VALUES ("+literal(fmt.Sprintf("%s%03d", prefix, n))+rest+")")
				}
			}
			hold, _ := granted(t, b, request(prefix+"007"))
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

// Forget locks no row but those that it removes: other keys are granted beside it.
func TestRowForgetBesideOthers(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		users := rowBackendOn(t, s, nil)
		prefix := uniqueKey(t) + "/"
		before, after := "!"+prefix, "~"+prefix
		used := func(key string) error {
			req := request(key)
			if _, err := users.Try(short(t, 3*time.Second), req); err != nil {
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
		}}, nil)
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
