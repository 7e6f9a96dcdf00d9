package servertest

import (
	"bytes"
	"context"
	"net"
	"strconv"
	"sync"
	"time"
)

// Direction is a way through a proxy.
type Direction int

// The two ways through a proxy.
const (
	ToServer Direction = iota
	ToClient
)

// both stands for no direction given.
func both(dirs []Direction) []Direction {
	if len(dirs) == 0 {
		return []Direction{ToServer, ToClient}
	}
	return dirs
}

// TCPProxy forwards connections to a server and does to them what networks do.
// All methods are safe for concurrent use. They apply to what either side sends
// after they return; what was under way at that moment may still pass.
type TCPProxy struct {
	addr string
	wg   sync.WaitGroup
	life context.Context // ends at cleanup
	end  context.CancelFunc

	mu       sync.Mutex
	server   string        // where new connections lead
	changed  chan struct{} // closed and replaced when frozen changes
	listener net.Listener  // nil while connections are refused
	links    map[*link]bool
	frozen   [2]bool
	delay    [2]time.Duration
	losses   []*loss
	accepted int
	lost     int
}

// loss is a fault that waits for its requests.
type loss struct {
	text  []byte // what the request contains; empty for any
	left  int
	where fate
}

// fate is what a loss does to a connection.
type fate int

const (
	spared      fate = iota
	loseRequest      // the request does not reach the server; the connection is cut
	loseReply        // the reply does not reach the client; the connection is cut
	stallReply       // no reply reaches the client any more; the connection stays
	stalled          // stallReply that has begun
)

// Proxy starts a proxy before addr (host:port) on a port of its own, which ends
// at the test's cleanup with all its connections. The server need not be there.
func Proxy(t TB, addr string) *TCPProxy {
	t.Helper()
	p := &TCPProxy{
		server:  addr,
		changed: make(chan struct{}),
		links:   map[*link]bool{},
	}
	p.life, p.end = context.WithCancel(context.Background())
	port, err := freePort()
	p.addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	if err == nil {
		err = p.listen()
	}
	if err != nil {
		t.Fatalf("servertest: no proxy before %s: %v", addr, err)
		return nil
	}
	t.Cleanup(p.close)
	return p
}

// Addr returns host:port for clients. It never changes.
func (p *TCPProxy) Addr() string { return p.addr }

// Refuse turns new connections away (connection refused) and leaves those that
// are open alone.
func (p *TCPProxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
}

// Accept ends Refuse.
func (p *TCPProxy) Accept(t TB) {
	t.Helper()
	if err := p.listen(); err != nil {
		t.Fatalf("servertest: the proxy can't listen again: %v", err)
	}
}

// LeadTo has new connections made to another server (host:port). Those that are open
// stay where they are, as at a planned switchover.
func (p *TCPProxy) LeadTo(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = addr
}

// Cut ends every open connection on both sides at once, with a reset. New ones
// can be made.
func (p *TCPProxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// Freeze forwards nothing more in these directions, in both if none is given,
// not even the end of a connection, until Resume. Nothing is closed, and new
// connections are made and frozen too.
func (p *TCPProxy) Freeze(dirs ...Direction) { p.setFrozen(true, dirs) }

// Resume ends Freeze in these directions, in both if none is given. What was
// held back is forwarded.
func (p *TCPProxy) Resume(dirs ...Direction) { p.setFrozen(false, dirs) }

func (p *TCPProxy) setFrozen(frozen bool, dirs []Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, dir := range both(dirs) {
		p.frozen[dir] = frozen
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// Delay forwards all bytes that arrive from now on this much later, in these
// directions, in both if none is given. 0 ends it. The bytes stay in order.
func (p *TCPProxy) Delay(d time.Duration, dirs ...Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, dir := range both(dirs) {
		p.delay[dir] = d
	}
}

// DropReplies lets the next n requests that contain text, any if text is "",
// through to the server, and drops what the server answers together with the
// connection, as a network does that fails in between. A connection on which
// several requests are under way, as in gRPC, is cut at the first bytes after
// the request, which may answer another one: there, use StallReplies, wait for
// the effect on the server, and Cut. A request is found if its text comes in one
// piece, as small requests do.
func (p *TCPProxy) DropReplies(n int, text string) { p.lose(loseReply, n, text) }

// DropRequests drops the next n requests that contain text, any if text is "",
// together with the connection, before they reach the server.
func (p *TCPProxy) DropRequests(n int, text string) { p.lose(loseRequest, n, text) }

// StallReplies lets the next n requests that contain text, any if text is "",
// through, and forwards nothing to the client any more on their connections,
// which stay open until their ends or Cut close them.
func (p *TCPProxy) StallReplies(n int, text string) { p.lose(stallReply, n, text) }

func (p *TCPProxy) lose(where fate, n int, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.losses = append(p.losses, &loss{text: []byte(text), left: n, where: where})
}

// Spare forgets the losses that still wait for their requests.
func (p *TCPProxy) Spare() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.losses = nil
}

// Lost returns how many requests and replies were dropped or stalled so far. A
// stalled reply counts when the server has sent some of it.
func (p *TCPProxy) Lost() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// Accepted returns how many connections clients have made so far.
func (p *TCPProxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Open returns how many connections are open.
func (p *TCPProxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// listen starts to accept unless it does already.
func (p *TCPProxy) listen() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		return nil
	}
	listener, err := net.Listen("tcp", p.addr)
	if err != nil {
		return err
	}
	p.listener = listener
	p.wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(client.(*net.TCPConn)) })
		}
	})
	return nil
}

func (p *TCPProxy) serve(client *net.TCPConn) {
	l := &link{proxy: p, ends: [2]*net.TCPConn{ToClient: client}, over: make(chan struct{})}
	p.mu.Lock()
	p.accepted++
	to := p.server
	p.mu.Unlock()
	server, err := new(net.Dialer).DialContext(p.life, "tcp", to)
	if err != nil {
		l.cut()
		return
	}
	l.ends[ToServer] = server.(*net.TCPConn)
	p.mu.Lock()
	p.links[l] = true
	p.mu.Unlock()
	if p.life.Err() != nil { // close did not see this one
		l.cut()
	}
	var pumps sync.WaitGroup
	pumps.Go(func() { l.pump(ToServer) })
	pumps.Go(func() { l.pump(ToClient) })
	pumps.Wait()
	l.close(false)
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

func (p *TCPProxy) close() {
	p.Refuse()
	p.end()
	p.Cut()
	p.wg.Wait()
}

// gate returns when the direction is not frozen, and false if the connection
// ended before that.
func (p *TCPProxy) gate(dir Direction, over <-chan struct{}) bool {
	for {
		p.mu.Lock()
		frozen, changed := p.frozen[dir], p.changed
		p.mu.Unlock()
		if !frozen {
			return true
		}
		select {
		case <-changed:
		case <-over:
			return false
		}
	}
}

func (p *TCPProxy) delayOf(dir Direction) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.delay[dir]
}

// match says what becomes of a request.
func (p *TCPProxy) match(request []byte) fate {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.losses {
		if l.left > 0 && bytes.Contains(request, l.text) {
			l.left--
			return l.where
		}
	}
	return spared
}

func (p *TCPProxy) countLoss() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost++
}
