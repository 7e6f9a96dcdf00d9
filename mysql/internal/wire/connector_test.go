package wire

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
)

// A connection that is given back at an age is not used again.
func TestConnectionsGetOld(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		cfg, err := mysql.ParseDSN(servertest.MySQLDSN(s))
		require.NoError(t, err)
		connector, err := NewConnector(cfg, time.Millisecond)
		require.NoError(t, err)
		db := sql.OpenDB(connector)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		id := func() int { return mysqltest.Number(t, db, "SELECT CONNECTION_ID()+SLEEP(0.01)") }
		first := id()
		require.NotEqual(t, first, id())
	})
}

// closesWith is a connector whose connections end with an error.
type closesWith struct{ err error }

func (c closesWith) Connect(context.Context) (driver.Conn, error) { return closing(c), nil }
func (c closesWith) Driver() driver.Driver                        { return nil }

type closing struct{ err error }

func (c closing) Prepare(string) (driver.Stmt, error) { return nil, c.err }
func (c closing) Begin() (driver.Tx, error)           { return nil, c.err }
func (c closing) Close() error                        { return c.err }

// A connection that has gone needs no closing.
func TestClosePool(t *testing.T) {
	t.Parallel()
	other := errors.New("another")
	for err, want := range map[error]error{nil: nil, driver.ErrBadConn: nil, mysql.ErrInvalidConn: nil, other: other} {
		db := sql.OpenDB(closesWith{err})
		conn, cerr := db.Conn(t.Context())
		require.NoError(t, cerr)
		require.NoError(t, conn.Close()) // back to the pool
		require.ErrorIs(t, ClosePool(db), want)
	}
}
