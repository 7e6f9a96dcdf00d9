package zklock

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// hosts gives the servers out in turns, from a random one on. It replaces the provider of the client
// library, which waits a whole second after each round and looks names up only once.
type hosts struct {
	s *session
	i int
}

func (h *hosts) Init([]string) error { return nil }
func (h *hosts) Len() int            { return len(h.s.cfg.servers) }
func (h *hosts) Connected()          {}

// Next is called by one goroutine. The client library looks whether it was closed
// only when the second result is true.
func (h *hosts) Next() (string, bool) {
	h.i++
	return h.s.cfg.servers[h.i%len(h.s.cfg.servers)], h.s.ended()
}

// dial connects to one server. The timeout is that of the client library, always a second.
// After a round in which none answered it pauses.
func (s *session) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	s.mu.Lock()
	failures, asked, outlived := s.failures, s.timeout, s.outlivedLocked()
	s.mu.Unlock()
	if outlived {
		s.end(true)
	}
	if failures > 0 && failures%len(s.cfg.servers) == 0 {
		pause := time.NewTimer(min(max(asked/20, 20*time.Millisecond), time.Second))
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-s.gone:
		}
	}
	if s.ended() {
		return nil, errors.New("the session has ended")
	}
	d := net.Dialer{Timeout: min(timeout, max(asked/4, 100*time.Millisecond))}
	conn, err := d.DialContext(s.life, network, address)
	patience := max(asked/3, 200*time.Millisecond)
	if err == nil && s.cfg.tls != nil {
		limited, cancel := context.WithTimeout(s.life, patience)
		conn, err = secure(limited, conn, address, s.cfg.tls)
		cancel()
	}
	if err != nil {
		s.failed(err)
		return nil, err
	}
	l := &link{Conn: conn, patience: patience}
	if !s.use(l) {
		_ = conn.Close()
		return nil, errors.New("the session has ended")
	}
	return l, nil
}

// link is a connection that gives up on a silent server. The client library waits
// two thirds of the session timeout for a byte, and ten times that during the
// handshake: too long to reach another server before the holds have to be given up.
// It also reads the timeout that was granted off the handshake, which the client
// library tells nobody.
type link struct {
	net.Conn

	mu       sync.Mutex
	patience time.Duration
	watches  chan struct{} // closed when the client library has sent its watches again; nil if it has none
	within   time.Duration // when that should have happened
	asked    bool          // something else was asked before that
	refused  error         // what the server has against our certificate, which it says after the handshake of TLS
	seen     int
	greeting [40]byte // length, version, timeout, session id, length and text of the password
}

// Read gives a server whose time is up a last moment: when this process stood still,
// the answer is there already.
func (l *link) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		l.mu.Lock()
		grace := l.patience / 4
		l.mu.Unlock()
		if err = l.Conn.SetReadDeadline(time.Now().Add(grace)); err == nil {
			n, err = l.Conn.Read(p)
		}
	}
	l.watchesFirst()
	l.mu.Lock()
	if badCertificate(err) {
		l.refused = err
	}
	l.seen += copy(l.greeting[min(l.seen, len(l.greeting)):], p[:n])
	l.mu.Unlock()
	return n, err
}

// Requests of the client library.
const (
	opPing       = 11
	opAuth       = 100
	opSetWatches = 101
)

// awaitWatches has answers wait, for so long at most, until the client library has
// sent the watches of the earlier connection again. It says there from when on it wants to hear of
// changes, and takes that from the last answer it got, without a lock: an answer to
// what was asked before must not come in between (go-zookeeper/zk pull request 35).
func (l *link) awaitWatches(limit time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watches, l.within = make(chan struct{}), limit
}

// Write looks at the requests. Each is written in one piece: length, number, kind.
//
// A write that fails ends the connection, and is told by the reader alone, at once. The
// client library answers a request whose write failed, and answers it again when the
// reader ends. For the credentials, which it repeats after a reconnect, nobody takes the
// second answer: it would wait for ever, and Close with it (go-zookeeper/zk issue 163). A
// request that is made beside Close would have three.
func (l *link) Write(p []byte) (int, error) {
	if len(p) >= 12 {
		l.asks(binary.BigEndian.Uint32(p[8:12]))
	}
	if _, err := l.Conn.Write(p); err != nil {
		_ = l.Close()
	}
	return len(p), nil
}

func (l *link) asks(kind uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.watches == nil, kind == opPing, kind == opAuth:
	case kind == opSetWatches:
		close(l.watches)
		l.watches = nil
	default:
		l.asked = true
	}
}

// watchesFirst returns when an answer may be read.
func (l *link) watchesFirst() {
	l.mu.Lock()
	watches, within, asked := l.watches, l.within, l.asked
	l.mu.Unlock()
	if watches == nil || !asked {
		return
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-watches:
	case <-timer.C:
		l.asks(opSetWatches)
	}
}

// granted is the session timeout that the server granted, or zero before the
// handshake has ended.
func (l *link) granted() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen < 12 {
		return 0
	}
	return time.Duration(binary.BigEndian.Uint32(l.greeting[8:12])) * time.Millisecond
}

func (l *link) refusal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused
}

func (l *link) setPatience(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.patience = d
}

// SetReadDeadline sets an earlier deadline than it was asked to.
func (l *link) SetReadDeadline(t time.Time) error {
	l.mu.Lock()
	limit := time.Now().Add(l.patience)
	l.mu.Unlock()
	if t.IsZero() || t.After(limit) {
		t = limit
	}
	return l.Conn.SetReadDeadline(t)
}
