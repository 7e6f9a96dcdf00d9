package servertest

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// portShare hands out the TCP ports of this process. Test binaries run beside each
// other, and a port that nobody listens on is not a free one: it may belong to a
// server that is down between Kill and Restart, or be the one on which a member of
// an ensemble listens only while it leads. So the range is cut into blocks, and a
// process takes ports only from blocks that it has claimed, by listening on the first
// port of each for as long as it runs.
//
// The range stays below those from which systems take ports for outgoing connections
// (32768 up on Linux, 49152 up elsewhere): such a port could be lost to any client,
// even to one that dials the very server and so connects to itself. It is 10000 wide
// because a member of a Redis Cluster also takes the port 10000 above its own.
//
// All methods are safe for concurrent use.
type portShare struct {
	low, high int // the range, high excluded
	block     int // ports per block, the first of which is the claim
	most      int // blocks that one process claims, before it begins again at its first
	listen    func(port int) (io.Closer, error)

	mu     sync.Mutex
	claims []io.Closer
	bases  []int // the first ports of the claimed blocks
	at     int   // index into bases of the block in use
	next   int   // the next port in it, counted from its base
}

// ownPorts are those of this process. Between two uses of the same port lie hundreds
// of others, so that it comes round again only when its server is long gone.
var ownPorts = &portShare{low: 12000, high: 22000, block: 100, most: 8, listen: listenOn}

// freePort returns a TCP port of this process's own on which nobody listens.
func freePort() (int, error) { return ownPorts.take() }

// FreePort returns such a port, for a server that the test starts itself.
func FreePort(t TB) string {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatalf("servertest: %v", err)
	}
	return strconv.Itoa(port)
}

func (p *portShare) take() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var last error
	for range p.most * p.block {
		port, err := p.step()
		if err != nil {
			return 0, err
		}
		l, err := p.listen(port)
		if err != nil {
			last = err
			continue
		}
		return port, l.Close()
	}
	return 0, fmt.Errorf("no free port: %w", last)
}

// step goes on to the next port of this process's blocks, free or not.
func (p *portShare) step() (int, error) {
	if len(p.bases) == 0 || p.next == p.block {
		if err := p.nextBlock(); err != nil {
			return 0, err
		}
	}
	port := p.bases[p.at] + p.next
	p.next++
	return port, nil
}

func (p *portShare) nextBlock() error {
	p.next = 1
	if len(p.bases) < p.most {
		err := p.claim()
		if err == nil {
			p.at = len(p.bases) - 1
			return nil
		}
		if len(p.bases) == 0 {
			return err
		}
	}
	p.at = (p.at + 1) % len(p.bases)
	return nil
}

func (p *portShare) claim() error {
	last := errors.New("the range is empty")
	for _, i := range rand.Perm((p.high - p.low) / p.block) {
		base := p.low + i*p.block
		l, err := p.listen(base)
		if err != nil {
			last = err
			continue
		}
		p.claims = append(p.claims, l)
		p.bases = append(p.bases, base)
		return nil
	}
	return fmt.Errorf("no free block of ports: %w", last)
}

func (p *portShare) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all error
	for _, l := range p.claims {
		all = errors.Join(all, l.Close())
	}
	p.claims, p.bases, p.next = nil, nil, 0
	return all
}

func listenOn(port int) (io.Closer, error) {
	return net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
}
