package wire

import (
	"context"
	"net"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/internal/failure"
)

// QuietDialer dials as go-redis does by itself. Where no server is reached it gives a connection on which
// every read and write fails in the same way: the pools of go-redis print each failed dial on
// standard error, and whoever gave no logger wants to see nothing.
func QuietDialer(opts *goredis.Options) func(ctx context.Context, network, addr string) (net.Conn, error) {
	dial := goredis.NewDialer(opts)
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil && failure.DialFailed(err) {
			return undialled{unreached{err}}, nil
		}
		return conn, err
	}
}

// unreached is around the error of a dial, since go-redis takes one layer off what it meets on
// a new connection, and the layer beneath tells that nothing was sent.
type unreached struct{ error }

func (u unreached) Unwrap() error { return u.error }

// undialled is a connection that there is none of.
type undialled struct{ err error }

func (u undialled) Read([]byte) (int, error)       { return 0, u.err }
func (u undialled) Write([]byte) (int, error)      { return 0, u.err }
func (undialled) Close() error                     { return nil }
func (undialled) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (undialled) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (undialled) SetDeadline(time.Time) error      { return nil }
func (undialled) SetReadDeadline(time.Time) error  { return nil }
func (undialled) SetWriteDeadline(time.Time) error { return nil }
