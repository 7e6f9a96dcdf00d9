package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// lineServer answers "re: x" to each line x and remembers what it was sent.
type lineServer struct {
	addr string

	mu    sync.Mutex
	seen  []string
	conns int
}

func newLineServer(t *testing.T) *lineServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &lineServer{addr: l.Addr().String()}
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.count(1)
			wg.Go(func() {
				defer s.count(-1)
				defer conn.Close()
				lines := bufio.NewScanner(conn)
				for lines.Scan() {
					s.mu.Lock()
					s.seen = append(s.seen, lines.Text())
					s.mu.Unlock()
					fmt.Fprintf(conn, "re: %s\n", lines.Text())
				}
				if lines.Err() == nil {
					fmt.Fprintln(conn, "bye")
				}
			})
		}
	})
	return s
}

func (s *lineServer) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns += n
}

func (s *lineServer) open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns
}

func (s *lineServer) saw(line string) func() bool {
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return strings.Contains(strings.Join(s.seen, "\n")+"\n", line+"\n")
	}
}

type lineClient struct {
	*net.TCPConn
	t *testing.T
	r *bufio.Reader
}

func dialLine(t *testing.T, addr string) *lineClient {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &lineClient{conn.(*net.TCPConn), t, bufio.NewReader(conn)}
}

func (c *lineClient) send(line string) {
	c.t.Helper()
	_, err := fmt.Fprintln(c, line)
	require.NoError(c.t, err)
}

func (c *lineClient) reply() (string, error) {
	line, err := c.r.ReadString('\n')
	return strings.TrimSpace(line), err
}

func (c *lineClient) wants(reply string) {
	c.t.Helper()
	require.NoError(c.t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	got, err := c.reply()
	require.NoError(c.t, err)
	require.Equal(c.t, reply, got)
}

// silent waits a moment in which nothing may come, not even an end.
func (c *lineClient) silent() {
	c.t.Helper()
	require.NoError(c.t, c.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	got, err := c.reply()
	timeout := net.Error(nil)
	require.True(c.t, errors.As(err, &timeout) && timeout.Timeout(), "got %q, %v", got, err)
}

func (c *lineClient) isCut() {
	c.t.Helper()
	require.NoError(c.t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	got, err := c.reply()
	require.ErrorIs(c.t, err, syscall.ECONNRESET, "got %q", got)
}

const soon, often = 10 * time.Second, time.Millisecond

func TestProxyForwards(t *testing.T) {
	t.Parallel()
	p := newProxy(t, newLineServer(t).addr)
	a, b := dialLine(t, p.Addr()), dialLine(t, p.Addr())
	a.send("a")
	b.send("b")
	a.wants("re: a")
	b.wants("re: b")
	require.Equal(t, 2, p.Accepted())
	require.Equal(t, 2, p.Open())

	require.NoError(t, a.CloseWrite())
	a.wants("bye")
	_, err := a.reply()
	require.ErrorIs(t, err, io.EOF, "an end in order stays one")
	require.Eventually(t, func() bool { return p.Open() == 1 }, soon, often)

	long := strings.Repeat("x", 60<<10)
	b.send(long)
	b.wants("re: " + long)
}

func TestProxyRefuses(t *testing.T) {
	t.Parallel()
	p := newProxy(t, newLineServer(t).addr)
	open := dialLine(t, p.Addr())
	open.send("1")
	open.wants("re: 1")
	p.Refuse()
	p.Refuse()
	_, err := net.Dial("tcp", p.Addr())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	open.send("2")
	open.wants("re: 2")
	require.NoError(t, p.Accept())
	require.NoError(t, p.Accept())
	again := dialLine(t, p.Addr())
	again.send("3")
	again.wants("re: 3")
	p.Close()
	require.Error(t, p.Accept(), "whoever heals it too late opens nothing again")
}

func TestProxyCuts(t *testing.T) {
	t.Parallel()
	p := newProxy(t, newLineServer(t).addr)
	c := dialLine(t, p.Addr())
	c.send("1")
	c.wants("re: 1")
	p.Cut()
	c.isCut()
	require.Eventually(t, func() bool { return p.Open() == 0 }, soon, often)
	c = dialLine(t, p.Addr())
	c.send("2")
	c.wants("re: 2")
}

func TestProxyFreezes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		dirs    []Direction
		reaches bool // the request reaches the server
	}{
		"both":      {nil, false},
		"to server": {[]Direction{ToServer}, false},
		"to client": {[]Direction{ToClient}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newLineServer(t)
			p := newProxy(t, s.addr)
			open := dialLine(t, p.Addr())
			open.send("0")
			open.wants("re: 0")
			p.Freeze(test.dirs...)
			fresh := dialLine(t, p.Addr())
			open.send("1")
			fresh.send("2")
			require.NoError(t, fresh.CloseWrite())
			open.silent()
			fresh.silent()
			if test.reaches {
				require.Eventually(t, s.saw("1"), soon, often)
				require.Eventually(t, s.saw("2"), soon, often)
			} else {
				require.False(t, s.saw("1")())
				require.False(t, s.saw("2")())
			}
			p.Resume()
			open.wants("re: 1")
			fresh.wants("re: 2")
			fresh.wants("bye")
		})
	}
}

func TestProxyCutsWhatIsFrozen(t *testing.T) {
	t.Parallel()
	s := newLineServer(t)
	p := newProxy(t, s.addr)
	c := dialLine(t, p.Addr())
	c.send("0")
	c.wants("re: 0")
	p.Freeze()
	c.send("1")
	c.silent()
	p.Cut()
	c.isCut()
	p.Resume()
	require.Eventually(t, func() bool { return p.Open() == 0 }, soon, often)
	require.False(t, s.saw("1")())
}

func TestProxyDelays(t *testing.T) {
	t.Parallel()
	s := newLineServer(t)
	p := newProxy(t, s.addr)
	c := dialLine(t, p.Addr())
	c.send("0")
	c.wants("re: 0")
	const d = 100 * time.Millisecond
	for _, test := range []struct {
		dirs  []Direction
		least time.Duration
	}{{nil, 2 * d}, {[]Direction{ToServer}, d}, {[]Direction{ToClient}, d}} {
		p.Delay(0)
		p.Delay(d, test.dirs...)
		begin := time.Now()
		c.send("1")
		c.wants("re: 1")
		require.GreaterOrEqual(t, time.Since(begin), test.least)
	}
	p.Delay(d, ToServer)
	begin := time.Now()
	for i := range 20 {
		c.send(fmt.Sprint(i))
		time.Sleep(5 * time.Millisecond) // a chunk of its own
	}
	for i := range 20 {
		c.wants(fmt.Sprint("re: ", i))
	}
	require.Less(t, time.Since(begin), 20*d, "delays of chunks must not add up")
}

func TestProxyDropsReplies(t *testing.T) {
	t.Parallel()
	s := newLineServer(t)
	p := newProxy(t, s.addr)
	p.DropReplies(2, "SET")
	hit := 0
	for i := range 4 {
		c := dialLine(t, p.Addr())
		c.send("GET")
		c.wants("re: GET")
		set := fmt.Sprint("SET ", i)
		c.send(set)
		if hit < 2 {
			c.isCut()
			hit++
		} else {
			c.wants("re: " + set)
		}
		require.Eventually(t, s.saw(set), soon, often, "the server has done its work")
		require.Equal(t, hit, p.Lost())
	}
}

func TestProxyDropsRequests(t *testing.T) {
	t.Parallel()
	s := newLineServer(t)
	p := newProxy(t, s.addr)
	p.DropRequests(1, "")
	c := dialLine(t, p.Addr())
	c.send("1")
	c.isCut()
	c = dialLine(t, p.Addr())
	c.send("2")
	c.wants("re: 2")
	require.False(t, s.saw("1")(), "it must not reach the server")
	require.Equal(t, 1, p.Lost())
}

func TestProxyStallsReplies(t *testing.T) {
	t.Parallel()
	s := newLineServer(t)
	p := newProxy(t, s.addr)
	p.StallReplies(1, "SET")
	stalled := dialLine(t, p.Addr())
	stalled.send("SET 1")
	stalled.silent()
	require.Eventually(t, s.saw("SET 1"), soon, often)
	stalled.send("SET 2")
	stalled.silent()
	require.Eventually(t, s.saw("SET 2"), soon, often, "requests go on reaching the server")
	other := dialLine(t, p.Addr())
	other.send("SET 3")
	other.wants("re: SET 3")
	require.Equal(t, 1, p.Lost())
	p.Cut()
	stalled.isCut()
}

func TestProxyWithoutServer(t *testing.T) {
	t.Parallel()
	p := newProxy(t, "127.0.0.1:1")
	conn, err := net.Dial("tcp", p.Addr())
	if err == nil { // the reset may come with the answer
		defer conn.Close()
		_, err = conn.Read(make([]byte, 1))
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.Zero(t, p.Open())
}

func TestProxyEnds(t *testing.T) {
	t.Parallel()
	p := newProxy(t, newLineServer(t).addr)
	c := dialLine(t, p.Addr())
	c.send("1")
	c.wants("re: 1")
	p.Freeze()
	c.send("2")
	c.silent()
	p.Close()
	c.isCut()
	_, err := net.Dial("tcp", p.Addr())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

// The loss that is counted hits its request, wherever others come from.
func TestProxyCountsRequests(t *testing.T) {
	t.Parallel()
	for reaches, drop := range map[bool]func(*Proxy, int){true: (*Proxy).DropReplyTo, false: (*Proxy).DropRequest} {
		s := newLineServer(t)
		p := newProxy(t, s.addr)
		a, b := dialLine(t, p.Addr()), dialLine(t, p.Addr())
		drop(p, 3)
		a.send("1")
		a.wants("re: 1")
		b.send("2")
		b.wants("re: 2")
		a.send("3")
		a.isCut()
		require.Equal(t, reaches, s.saw("3")())
		b.send("4")
		b.wants("re: 4")
		require.Equal(t, 1, p.Lost())
	}
}

func TestProxyIsDown(t *testing.T) {
	t.Parallel()
	s := newLineServer(t)
	p := newProxy(t, s.addr)
	c, other := dialLine(t, p.Addr()), dialLine(t, p.Addr())
	other.send("0")
	other.wants("re: 0")
	p.DownWithLoss()
	p.DropReplyTo(1)
	c.send("1")
	c.isCut()
	other.isCut()
	require.Eventually(t, s.saw("1"), soon, often)
	if conn, err := net.Dial("tcp", p.Addr()); err == nil { // or it is cut before that
		(&lineClient{conn.(*net.TCPConn), t, bufio.NewReader(conn)}).isCut()
	}
	p.Up()
	c = dialLine(t, p.Addr())
	c.send("2")
	c.wants("re: 2")
	p.Down()
	c.isCut()
}

func TestProxyLosesUnseen(t *testing.T) {
	t.Parallel()
	s := newLineServer(t)
	p := newProxy(t, s.addr)
	p.LoseUnseen()
	lose := func(n int) {
		c := dialLine(t, p.Addr())
		c.send("1")
		c.isCut()
		require.Eventually(t, func() bool { return s.open() == n }, soon, often, "the server has not seen the end of any")
	}
	p.DropReplyTo(1)
	lose(1)
	p.DropRequest(1)
	lose(2)
	other := dialLine(t, p.Addr())
	other.send("0")
	other.wants("re: 0")
	p.DownWithLoss()
	p.DropReplyTo(1)
	lose(4)
	other.isCut()
	p.Up()
	c := dialLine(t, p.Addr())
	c.send("2")
	c.wants("re: 2")
	p.Cut()
	c.isCut()
	require.Eventually(t, func() bool { return s.open() == 4 }, soon, often, "a cut is seen")
	p.Close()
	require.Eventually(t, func() bool { return s.open() == 0 }, soon, often)
}

func newProxy(t *testing.T, server string) *Proxy {
	t.Helper()
	p, err := New("127.0.0.1:0", server)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}
