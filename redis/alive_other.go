//go:build !unix

package redislock

import "net"

// alive can't be told here without reading: a command tells.
func alive(net.Conn) bool { return true }
