// Package proxy stands between clients and a server, and does to their connections what
// networks do.
package proxy

import (
	"bytes"
	"context"
	"errors"
	"net"
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

// Proxy forwards connections to a server and does to them what networks do.
// All methods are safe for concurrent use. They apply to what either side sends
// after they return; what was under way at that moment may still pass.
type Proxy struct {
	addr string
	wg   sync.WaitGroup
	life context.Context // ends at cleanup
	end  context.CancelFunc

	mu        sync.Mutex
	server    string        // where new connections lead
	changed   chan struct{} // closed and replaced when frozen changes
	listener  net.Listener  // nil while connections are refused
	links     map[*link]bool
	down      bool // connections are made and cut at once
	falls     bool // goes down with the next loss
	frozen    [2]bool
	delay     [2]time.Duration
	losses    []*loss
	unseen    bool           // the server does not see the end of a connection that is lost
	abandoned []*net.TCPConn // what the server has of those
	accepted  int
	unreached int
	lost      int
}

// loss is a fault that waits for its requests.
type loss struct {
	text  []byte // what the request contains; empty for any
	spare int    // requests that are let through before
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

// acceptAgain is the pause after a connection that could not be accepted.
const acceptAgain = 5 * time.Millisecond

// New starts a proxy that listens on listen (host:port, with the port 0 for any that is
// free) and leads to server (host:port), which need not be there. Close ends it.
func New(listen, server string) (*Proxy, error) {
	p := &Proxy{
		addr:    listen,
		server:  server,
		changed: make(chan struct{}),
		links:   map[*link]bool{},
	}
	p.life, p.end = context.WithCancel(context.Background())
	if err := p.Accept(); err != nil {
		p.end()
		return nil, err
	}
	p.addr = p.listener.Addr().String()
	return p, nil
}

// Addr returns host:port for clients. It never changes.
func (p *Proxy) Addr() string { return p.addr }

// Refuse turns new connections away (connection refused) and leaves those that
// are open alone.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
}

// LeadTo has new connections made to another server (host:port). Those that are open
// stay where they are, as at a planned switchover.
func (p *Proxy) LeadTo(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = addr
}

// Cut ends every open connection on both sides at once, with a reset. New ones
// can be made.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// Down is Cut, and cuts every new connection too, until Up. Unlike Refuse it keeps the
// port.
func (p *Proxy) Down() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down, p.falls = true, false
	for l := range p.links {
		l.cut()
	}
}

// DownWithLoss goes Down together with the next request or reply that is dropped.
func (p *Proxy) DownWithLoss() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.falls = true
}

// Up ends Down, and takes DownWithLoss back.
func (p *Proxy) Up() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down, p.falls = false, false
}

// Freeze forwards nothing more in these directions, in both if none is given,
// not even the end of a connection, until Resume. Nothing is closed, and new
// connections are made and frozen too.
func (p *Proxy) Freeze(dirs ...Direction) { p.setFrozen(true, dirs) }

// Resume ends Freeze in these directions, in both if none is given. What was
// held back is forwarded.
func (p *Proxy) Resume(dirs ...Direction) { p.setFrozen(false, dirs) }

func (p *Proxy) setFrozen(frozen bool, dirs []Direction) {
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
func (p *Proxy) Delay(d time.Duration, dirs ...Direction) {
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
func (p *Proxy) DropReplies(n int, text string) {
	p.lose(loss{text: []byte(text), left: n, where: loseReply})
}

// DropRequests drops the next n requests that contain text, any if text is "",
// together with the connection, before they reach the server.
func (p *Proxy) DropRequests(n int, text string) {
	p.lose(loss{text: []byte(text), left: n, where: loseRequest})
}

// DropReplyTo is DropReplies for the n-th request from now on, counted from 1.
func (p *Proxy) DropReplyTo(n int) { p.lose(loss{spare: n - 1, left: 1, where: loseReply}) }

// DropRequest is DropRequests for the n-th request from now on, counted from 1.
func (p *Proxy) DropRequest(n int) { p.lose(loss{spare: n - 1, left: 1, where: loseRequest}) }

// StallReplies lets the next n requests that contain text, any if text is "",
// through, and forwards nothing to the client any more on their connections,
// which stay open until their ends or Cut close them.
func (p *Proxy) StallReplies(n int, text string) {
	p.lose(loss{text: []byte(text), left: n, where: stallReply})
}

func (p *Proxy) lose(l loss) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.losses = append(p.losses, &l)
}

// LoseUnseen has the server not see the end of a connection whose request or reply is dropped:
// to it, the connection stays open until Close, as when the network between fails, or a client's
// machine.
func (p *Proxy) LoseUnseen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unseen = true
}

// Spare forgets the losses that still wait for their requests.
func (p *Proxy) Spare() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.losses = nil
}

// Lost returns how many requests and replies were dropped or stalled so far. A
// stalled reply counts when the server has sent some of it.
func (p *Proxy) Lost() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// Accepted returns how many connections clients have made so far.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Unreached returns how many connections were cut since the server could not be reached from here.
func (p *Proxy) Unreached() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unreached
}

// Open returns how many connections are open.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Accept ends Refuse. It fails when somebody else has taken the port meanwhile, and after Close.
func (p *Proxy) Accept() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		return nil
	}
	if err := p.life.Err(); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", p.addr)
	if err != nil {
		return err
	}
	p.listener = listener
	p.wg.Go(func() {
		for {
			client, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // such as too many open files, for now
				time.Sleep(acceptAgain)
				continue
			}
			p.wg.Go(func() { p.serve(client.(*net.TCPConn)) })
		}
	})
	return nil
}

func (p *Proxy) serve(client *net.TCPConn) {
	l := &link{proxy: p, ends: [2]*net.TCPConn{ToClient: client}, over: make(chan struct{})}
	p.mu.Lock()
	p.accepted++
	to, down := p.server, p.down
	p.mu.Unlock()
	if down {
		l.cut()
		return
	}
	server, err := new(net.Dialer).DialContext(p.life, "tcp", to)
	if err != nil {
		p.mu.Lock()
		p.unreached++
		p.mu.Unlock()
		l.cut()
		return
	}
	l.ends[ToServer] = server.(*net.TCPConn)
	p.mu.Lock()
	p.links[l] = true
	down = p.down
	p.mu.Unlock()
	if down || p.life.Err() != nil { // Down or Close did not see this one
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

// Close ends the proxy with all its connections, and waits until they have ended.
func (p *Proxy) Close() {
	p.end()
	p.Refuse()
	p.Cut()
	p.mu.Lock()
	for _, server := range p.abandoned {
		_ = server.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// gate returns when the direction is not frozen, and false if the connection
// ended before that.
func (p *Proxy) gate(dir Direction, over <-chan struct{}) bool {
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

func (p *Proxy) delayOf(dir Direction) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.delay[dir]
}

// match says what becomes of a request.
func (p *Proxy) match(request []byte) fate {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.losses {
		switch {
		case l.left == 0 || !bytes.Contains(request, l.text):
		case l.spare > 0:
			l.spare--
		default:
			l.left--
			return l.where
		}
	}
	return spared
}

// endLost ends the connection whose request or reply was dropped, and all others if the proxy
// goes down with it.
func (p *Proxy) endLost(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost++
	lost := map[*link]bool{l: true}
	if p.falls {
		p.down, p.falls = true, false
		lost = p.links
	}
	for l := range lost {
		if p.unseen {
			p.abandoned = append(p.abandoned, l.abandon()...)
		} else {
			l.cut()
		}
	}
}

// countStalled counts a reply that was stalled.
func (p *Proxy) countStalled() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost++
}
