package mysqltest

import (
	"context"
	"database/sql/driver"

	"github.com/go-sql-driver/mysql"
)

// PlainConn is a connection of the driver, for those that do something to its
// statements.
type PlainConn struct{ driver.Conn }

// IsValid implements driver.Validator.
func (c PlainConn) IsValid() bool { return c.Conn.(driver.Validator).IsValid() }

// ResetSession implements driver.SessionResetter.
func (c PlainConn) ResetSession(ctx context.Context) error {
	return c.Conn.(driver.SessionResetter).ResetSession(ctx)
}

// QueryContext implements driver.QueryerContext.
func (c PlainConn) QueryContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, q, args)
}

// ExecContext implements driver.ExecerContext.
func (c PlainConn) ExecContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Result, error) {
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, q, args)
}

// IdleConnector makes connections that nobody uses.
type IdleConnector struct{}

// Connect implements driver.Connector.
func (IdleConnector) Connect(context.Context) (driver.Conn, error) { return idleConn{}, nil }

// Driver implements driver.Connector.
func (IdleConnector) Driver() driver.Driver { return &mysql.MySQLDriver{} }

type idleConn struct{ driver.Conn }

func (idleConn) Close() error { return nil }
