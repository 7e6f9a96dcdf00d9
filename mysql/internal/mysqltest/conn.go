package mysqltest

import (
	"context"
	"database/sql/driver"

	"github.com/go-sql-driver/mysql"
)

// PlainConn is a connection of the driver, for those that do something to its
// statements.
type PlainConn struct{ driver.Conn }

func (c PlainConn) IsValid() bool { return c.Conn.(driver.Validator).IsValid() }

func (c PlainConn) ResetSession(ctx context.Context) error {
	return c.Conn.(driver.SessionResetter).ResetSession(ctx)
}

func (c PlainConn) QueryContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, q, args)
}

func (c PlainConn) ExecContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Result, error) {
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, q, args)
}

// IdleConnector makes connections that nobody uses.
type IdleConnector struct{}

func (IdleConnector) Connect(context.Context) (driver.Conn, error) { return idleConn{}, nil }

func (IdleConnector) Driver() driver.Driver { return &mysql.MySQLDriver{} }

type idleConn struct{ driver.Conn }

func (idleConn) Close() error { return nil }
