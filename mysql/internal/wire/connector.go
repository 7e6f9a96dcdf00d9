package wire

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mortiselock/lock/backend"
)

// cuttable makes connections whose statements can be given up from outside, by
// closing the socket. The driver's own way is a goroutine per connection that is
// told about each statement's context and about its end. With 16 holders of rows that takes a
// seventh of the rate.
type cuttable struct {
	driver.Connector
	readTimeout time.Duration
	limit       time.Duration // for a connection with the greeting and the login; 0: none
	lifetime    time.Duration // of a connection; 0: no limit
	// outdated counts how often a server has said that it takes no writes: connections that
	// were made before may all lead to it.
	outdated *atomic.Int64
}

// NewConnector makes a connector whose connections can be cut, and are given up at an age,
// unless that is zero.
func NewConnector(cfg *mysql.Config, lifetime time.Duration) (driver.Connector, error) {
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
	made := cuttable{Connector: connector, readTimeout: c.ReadTimeout, lifetime: lifetime, outdated: new(atomic.Int64)}
	if c.Timeout > 0 {
		made.limit = max(c.Timeout, loginLimit)
	}
	return made, nil
}

// loginLimit is for how long a server that is slow may take to greet and to log in, also
// where Timeout is shorter.
const loginLimit = 6 * time.Second

type dialledKey struct{}

// Connect is part of driver.Connector.
func (c cuttable) Connect(ctx context.Context) (driver.Conn, error) {
	var socket net.Conn
	since := c.outdated.Load()
	if c.limit > 0 {
		// The driver would wait for the greeting as long as for any answer.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.limit)
		defer cancel()
	}
	conn, err := c.Connector.Connect(context.WithValue(ctx, dialledKey{}, &socket))
	if err != nil {
		return nil, err
	}
	whole, ok := conn.(driverConn)
	if !ok || socket == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%w: a connection of type %T", backend.ErrUnsupported, conn)
	}
	cut := &cutConn{driverConn: whole, socket: socket, outdated: c.outdated, since: since}
	if c.lifetime > 0 {
		cut.until = time.Now().Add(c.lifetime)
	}
	return cut, nil
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
	socket   net.Conn
	until    time.Time // zero: no limit
	outdated *atomic.Int64
	since    int64 // what outdated was when it was made
}

// IsValid is asked before the connection goes back to its pool, and ResetSession before it
// is used again.
func (c *cutConn) IsValid() bool {
	return c.driverConn.IsValid() && c.since == c.outdated.Load() && (c.until.IsZero() || time.Now().Before(c.until))
}

func (c *cutConn) ResetSession(ctx context.Context) error {
	if !c.IsValid() {
		return driver.ErrBadConn
	}
	return c.driverConn.ResetSession(ctx)
}

// ExecContext and QueryContext look whether the server still takes writes.
func (c *cutConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	res, err := c.driverConn.ExecContext(ctx, query, args)
	c.look(err)
	return res, err
}

func (c *cutConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	rows, err := c.driverConn.QueryContext(ctx, query, args)
	c.look(err)
	return rows, err
}

func (c *cutConn) look(err error) {
	if IsReadOnly(err) {
		c.outdated.CompareAndSwap(c.since, c.since+1)
	}
}

// SocketOf is the socket of a connection that can be cut, and nil for others.
func SocketOf(conn *sql.Conn) (socket net.Conn) {
	_ = conn.Raw(func(c any) error {
		if cut, ok := c.(*cutConn); ok {
			socket = cut.socket
		}
		return nil
	})
	return socket
}

// Discard closes a connection, which does not go back to its pool.
func Discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
}

// ClosePool closes a pool. A connection that is broken is closed by that, and no error: the
// driver says ErrBadConn of one that has gone.
func ClosePool(db *sql.DB) error {
	if err := db.Close(); !errors.Is(err, driver.ErrBadConn) && !errors.Is(err, mysql.ErrInvalidConn) {
		return err
	}
	return nil
}

// LeaveServer is Discard for a connection to a server that has become read-only. Those
// that are as old go too.
func LeaveServer(conn *sql.Conn) {
	_ = conn.Raw(func(c any) error {
		if cut, ok := c.(*cutConn); ok {
			cut.outdated.CompareAndSwap(cut.since, cut.since+1)
		}
		return driver.ErrBadConn
	})
	_ = conn.Close()
}

// ReadTimeout is the ReadTimeout of a connector of NewConnector, and zero for others.
func ReadTimeout(connector driver.Connector) time.Duration {
	c, _ := connector.(cuttable)
	return c.readTimeout
}
