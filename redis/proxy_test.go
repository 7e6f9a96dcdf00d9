package redislock

import (
	"bytes"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// proxy forwards connections to a server. Armed, it lets one request through
// and drops its reply together with the connection.
type proxy struct {
	addr    string
	trigger atomic.Pointer[[]byte] // what the request to be hit contains
	drops   atomic.Int32           // how many replies were dropped
	stop    func()                 // refuses further connections
	target  atomic.Pointer[string] // where further connections lead
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{addr: l.Addr().String(), stop: func() { _ = l.Close() }}
	p.target.Store(&target)
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	keep := func(c net.Conn) net.Conn {
		mu.Lock()
		defer mu.Unlock()
		open[c] = true
		return c
	}
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			keep(client)
			server, err := net.Dial("tcp", *p.target.Load())
			if err != nil {
				_ = client.Close()
				continue
			}
			keep(server)
			var hit atomic.Bool
			wg.Go(func() { p.requests(client, server, &hit) })
			wg.Go(func() { p.replies(client, server, &hit) })
		}
	})
	return p
}

// dropReplyTo arms the proxy for the next request that contains the text.
func (p *proxy) dropReplyTo(text string) {
	b := []byte(text)
	p.trigger.Store(&b)
}

func (p *proxy) requests(client, server net.Conn, hit *atomic.Bool) {
	defer func() { _ = server.Close() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		if text := p.trigger.Load(); text != nil && bytes.Contains(buf[:n], *text) && p.trigger.CompareAndSwap(text, nil) {
			hit.Store(true)
		}
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *proxy) replies(client, server net.Conn, hit *atomic.Bool) {
	defer func() { _ = client.Close() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		if err == nil && hit.Load() {
			p.drops.Add(1)
			return // the server has done its work, and the client never hears of it
		}
		if _, werr := client.Write(buf[:n]); werr != nil || err != nil {
			return
		}
	}
}
