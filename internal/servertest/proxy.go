package servertest

import (
	"net"
	"strconv"

	"github.com/mortiselock/lock/internal/proxy"
)

// Direction is a way through a proxy.
type Direction = proxy.Direction

// The two ways through a proxy.
const (
	ToServer = proxy.ToServer
	ToClient = proxy.ToClient
)

// TCPProxy is a proxy of a test.
type TCPProxy struct{ *proxy.Proxy }

// Proxy starts a proxy before addr (host:port) on a port of its own, which ends
// at the test's cleanup with all its connections. The server need not be there.
func Proxy(t TB, addr string) *TCPProxy {
	t.Helper()
	port, err := freePort()
	var p *proxy.Proxy
	if err == nil {
		p, err = proxy.New(net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), addr)
	}
	if err != nil {
		t.Fatalf("servertest: no proxy before %s: %v", addr, err)
		return nil
	}
	t.Cleanup(p.Close)
	return &TCPProxy{p}
}

// Accept ends Refuse.
func (p *TCPProxy) Accept(t TB) {
	t.Helper()
	if err := p.Proxy.Accept(); err != nil {
		t.Fatalf("servertest: the proxy can't listen again: %v", err)
	}
}
