//go:build unix

package redislock

import (
	"crypto/tls"
	"net"
	"syscall"
	"time"

	"github.com/mortiselock/lock/internal/failure"
)

// alive reports whether the server has not closed an idle connection, and has sent nothing.
// It changes the deadline of one with TLS.
func alive(conn net.Conn) bool {
	under := conn
	secured, hasTLS := conn.(*tls.Conn)
	if hasTLS {
		under = secured.NetConn()
	}
	sys, ok := under.(syscall.Conn)
	if !ok {
		return true // a read tells
	}
	raw, err := sys.SyscallConn()
	if err != nil {
		return false
	}
	silent, said := false, false
	err = raw.Read(func(fd uintptr) bool {
		n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		silent = err == syscall.EAGAIN || err == syscall.EWOULDBLOCK
		said = err == nil && n > 0
		return true
	})
	if err == nil && said && hasTLS {
		// Perhaps to TLS alone, as a ticket for the next connection is.
		_ = conn.SetDeadline(time.Now().Add(time.Millisecond))
		_, err := conn.Read(make([]byte, 1))
		return failure.IsTimeout(err)
	}
	return err == nil && silent
}
