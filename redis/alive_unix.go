//go:build unix

package redislock

import (
	"net"
	"syscall"
)

// alive reports whether the server has not closed an idle connection, and has sent nothing.
func alive(conn net.Conn) bool {
	sys, ok := conn.(syscall.Conn)
	if !ok {
		return true // TLS: a read tells
	}
	raw, err := sys.SyscallConn()
	if err != nil {
		return false
	}
	silent := false
	err = raw.Read(func(fd uintptr) bool {
		_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		silent = err == syscall.EAGAIN || err == syscall.EWOULDBLOCK
		return true
	})
	return err == nil && silent
}
