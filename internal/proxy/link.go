package proxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// link is one connection through a proxy.
type link struct {
	proxy *Proxy
	ends  [2]*net.TCPConn // by the direction that writes to it; no server if it can't be reached
	over  chan struct{}   // closed by cut
	once  sync.Once

	mu   sync.Mutex
	fate fate // of the replies
}

// chunk is what was read at once; the end of the stream if err is not nil.
type chunk struct {
	data []byte
	due  time.Time
	err  error
}

// cut closes both ends with a reset.
func (l *link) cut() { l.close(true) }

func (l *link) close(reset bool) {
	l.once.Do(func() {
		close(l.over)
		for _, end := range l.ends {
			if end == nil {
				continue
			}
			if reset {
				_ = end.SetLinger(0)
			}
			_ = end.Close()
		}
	})
}

// abandon closes the client's end with a reset, and returns the server's end, which stays open,
// unless the link has ended already.
func (l *link) abandon() (server []*net.TCPConn) {
	l.once.Do(func() {
		close(l.over)
		client := l.ends[ToClient]
		_ = client.SetLinger(0)
		_ = client.Close()
		_ = l.ends[ToServer].SetReadDeadline(time.Unix(1, 0)) // ends its reader
		server = append(server, l.ends[ToServer])
	})
	return server
}

// pump forwards one direction until its stream ends or the link is cut. Reading
// goes on while earlier bytes wait, so that each is as late as it should be.
func (l *link) pump(dir Direction) {
	const most = 256 // chunks in flight
	chunks := make(chan chunk, most)
	var reader sync.WaitGroup
	defer reader.Wait()
	reader.Go(func() { l.read(dir, chunks) })
	for {
		select {
		case c := <-chunks:
			if !l.forward(dir, c) {
				return
			}
		case <-l.over:
			return
		}
	}
}

func (l *link) read(dir Direction, chunks chan<- chunk) {
	from := l.ends[1-dir]
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		due := time.Now().Add(l.proxy.delayOf(dir))
		for _, c := range []chunk{{data: bytes.Clone(buf[:n]), due: due}, {due: due, err: err}} {
			if len(c.data) == 0 && c.err == nil {
				continue
			}
			select {
			case chunks <- c:
			case <-l.over:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// forward passes a chunk on when it is due. It returns false when the direction
// has ended.
func (l *link) forward(dir Direction, c chunk) bool {
	if wait := time.Until(c.due); wait > 0 {
		select {
		case <-time.After(wait):
		case <-l.over:
			return false
		}
	}
	if !l.proxy.gate(dir, l.over) {
		return false
	}
	to := l.ends[dir]
	if c.err != nil {
		if !errors.Is(c.err, io.EOF) || to.CloseWrite() != nil {
			l.cut()
		}
		return false
	}
	if l.lose(dir, c.data) {
		return true // cut, if it is the end
	}
	if _, err := to.Write(c.data); err != nil {
		l.cut()
		return false
	}
	return true
}

// lose reports whether the bytes must not be forwarded. A request that hits is
// noted before it is forwarded, since the reply may come at once.
func (l *link) lose(dir Direction, data []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if dir == ToServer {
		if l.fate != spared {
			return false
		}
		if l.fate = l.proxy.match(data); l.fate != loseRequest {
			return false
		}
		l.proxy.endLost(l)
		return true
	}
	switch l.fate {
	case loseReply:
		l.proxy.endLost(l)
		return true
	case stallReply:
		l.proxy.countStalled()
		l.fate = stalled
		return true
	case stalled:
		return true
	default:
		return false
	}
}
