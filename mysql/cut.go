package mysqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"net"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mortiselock/lock/backend"
)

// cuttable makes connections whose statements can be given up from outside, by
// closing the socket. The driver's own way is a goroutine per connection that is
// told about each statement's context and about its end, which takes longer than a
// statement needs on a local network.
type cuttable struct {
	driver.Connector
	readTimeout time.Duration
}

// NewConnector is mysql.NewConnector for [NewRow], and for pools that are given to
// [NewTable], with sql.OpenDB: a statement costs less there, since it can be given up
// without the driver's help when its context has ended and the server does not
// answer. The connections of a URL are made in this way. It dials by itself: a config with a DialFunc is refused
// with ErrInvalid. The config is not changed.
func NewConnector(cfg *mysql.Config) (driver.Connector, error) {
	if cfg == nil || cfg.DialFunc != nil {
		return nil, fmt.Errorf("mysqllock: %w: a config without a DialFunc is needed", backend.ErrInvalid)
	}
	c := cfg.Clone()
	c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if dialled, ok := ctx.Value(dialledKey{}).(*net.Conn); ok && err == nil {
			*dialled = conn
		}
		return conn, err
	}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, fmt.Errorf("mysqllock: %w: %w", backend.ErrInvalid, err)
	}
	return cuttable{connector, c.ReadTimeout}, nil
}

type dialledKey struct{}

// Connect is part of driver.Connector.
func (c cuttable) Connect(ctx context.Context) (driver.Conn, error) {
	var socket net.Conn
	conn, err := c.Connector.Connect(context.WithValue(ctx, dialledKey{}, &socket))
	if err != nil {
		return nil, err
	}
	whole, ok := conn.(driverConn)
	if !ok || socket == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%w: a connection of type %T", backend.ErrUnsupported, conn)
	}
	return &cutConn{whole, socket}, nil
}

// driverConn is everything that database/sql can use of a connection of the driver.
type driverConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.NamedValueChecker
	driver.Pinger
	driver.QueryerContext
	driver.SessionResetter
	driver.Validator
}

type cutConn struct {
	driverConn
	socket net.Conn
}

// socketOf is the socket of a connection that can be cut, and nil for others.
func socketOf(conn *sql.Conn) (socket net.Conn) {
	_ = conn.Raw(func(c any) error {
		if cut, ok := c.(*cutConn); ok {
			socket = cut.socket
		}
		return nil
	})
	return socket
}
