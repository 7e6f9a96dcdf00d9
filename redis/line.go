package redislock

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/joined"
	"github.com/mortiselock/lock/redis/internal/wire"
)

// line is a connection for the commands of one caller at a time, which writes the command and
// reads the reply itself. When its context ends the read is made to fail, and the call returns.
// So no other goroutine has part in a call, unless it is cancelled, and a command costs a
// write and a read.
//
// go-redis makes the connections, with all that is said before the first command. It can't do
// the rest: it looks at the deadline of a context before it reads, and at nothing after that.
type line struct {
	opts    *goredis.Options
	patient time.Duration // how long a reply is awaited at most

	away   sync.WaitGroup // who connects, or waits for what was abandoned
	life   context.Context
	finish context.CancelFunc

	mu         sync.Mutex
	connecting *connecting // under way, or not fetched
	open       *connection // what conn is or was

	// Those who send have the rest, one at a time.
	conn *connection // ready, or nil
	used time.Time   // the last time; zero for a connection that was not
	in   *bufio.Reader
	out  []byte
}

// connection is one that go-redis has made for a client of its own, and never uses again.
type connection struct {
	net.Conn
	client *goredis.Client
}

// Close implements net.Conn.
func (c *connection) Close() error { return c.client.Close() }

// connecting is an attempt to get a connection. It goes on when its caller has gone.
type connecting struct {
	done chan struct{}
	conn *connection // set before
	err  error       // set before
}

// newLines returns n lines to a server. They connect when they are used.
func newLines(n int, opts *goredis.Options) []*line {
	lines := make([]*line, n)
	for i := range lines {
		l := &line{opts: opts, patient: opts.ReadTimeout}
		l.life, l.finish = context.WithCancel(context.Background())
		lines[i] = l
	}
	return lines
}

// close ends what is under way, and whoever sends afterwards gets goredis.ErrClosed.
func (l *line) close() {
	l.finish()
	l.mu.Lock()
	if l.open != nil {
		_ = l.open.Close()
	}
	if c := l.connecting; c != nil && c.isDone() && c.err == nil {
		_ = c.conn.Close()
	}
	l.mu.Unlock()
	wire.WaitBriefly(&l.away)
}

// process sends the command and waits for its reply until the context ends.
func (l *line) process(ctx context.Context, cmd wire.Command) error {
	err := l.exchange(ctx, cmd)
	if err != nil {
		cmd.SetErr(err)
	}
	return err
}

func (l *line) exchange(ctx context.Context, cmd wire.Command) error {
	if l.life.Err() != nil {
		return goredis.ErrClosed
	}
	if err := l.connect(ctx); err != nil {
		return err
	}
	conn := l.conn
	_ = conn.SetDeadline(time.Now().Add(l.patient)) // an error is that of the write, too
	c := interruptible{conn: conn}
	stop := joined.AfterFunc(ctx, c.interrupt)
	l.out = appendCommand(l.out[:0], cmd.Args())
	n, err := conn.Write(l.out)
	var reply any
	if err == nil {
		reply, err = readReply(l.in)
	}
	replied := err == nil || err == goredis.Nil || isRefusal(err) //nolint:errorlint // as it came
	if !stop() && c.over() && !replied {
		l.conn = nil
		return l.abandon(ctx, conn, n == len(l.out))
	}
	// What comes after the reply would be taken for that to the next command.
	if !replied || l.in.Buffered() > 0 || goredis.IsReadOnlyError(err) {
		_ = conn.Close()
		l.conn = nil
	}
	if !replied || goredis.IsReadOnlyError(err) {
		if replied && l.used.IsZero() {
			return fromNew{err}
		}
		return err
	}
	l.used = time.Now()
	if err == nil {
		cmd.SetVal(reply)
	}
	return err
}

// interruptible is what the end of a context makes fail, unless it is over.
type interruptible struct {
	mu   sync.Mutex
	conn net.Conn // or nil, when it is over
	cut  bool
}

// past is a deadline that has passed.
var past = time.Unix(1, 0)

func (c *interruptible) interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		c.cut = true
		_ = c.conn.SetDeadline(past)
	}
}

// over lets nothing be interrupted any more, and reports whether it was.
func (c *interruptible) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = nil
	return c.cut
}

// connect sees to it that there is a connection. The error is that of the attempt, or the bare
// one of the context: then nothing was sent.
func (l *line) connect(ctx context.Context) error {
	if l.conn != nil && time.Since(l.used) > idleUnchecked {
		// The look would fail for a deadline that has passed.
		if _ = l.conn.SetDeadline(time.Time{}); !alive(l.conn.Conn) {
			_ = l.conn.Close()
			l.conn = nil
		}
	}
	if l.conn != nil {
		return ctx.Err()
	}
	c := l.begin()
	if c == nil {
		return goredis.ErrClosed
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	l.mu.Lock()
	l.connecting = nil
	if c.err == nil && l.life.Err() == nil {
		l.open = c.conn
	}
	l.mu.Unlock()
	switch {
	case l.life.Err() != nil:
		if c.err == nil {
			_ = c.conn.Close()
		}
		return goredis.ErrClosed
	case c.err != nil && wire.Sentinel(c.err) == nil:
		return unconnected{c.err}
	case c.err != nil:
		return c.err
	}
	l.conn, l.used = c.conn, time.Time{}
	if l.in == nil {
		l.in = bufio.NewReader(c.conn)
	} else {
		l.in.Reset(c.conn)
	}
	return ctx.Err()
}

// unconnected is what went wrong before there was a connection: nothing was sent.
type unconnected struct{ error }

func (u unconnected) Error() string {
	return fmt.Sprintf("%v: connecting: %v", backend.ErrUnavailable, u.error)
}

func (u unconnected) Unwrap() []error { return []error{backend.ErrUnavailable, u.error} }

// begin returns an attempt that is under way or was not fetched, or a new one, and nil after
// close.
func (l *line) begin() *connecting {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.life.Err() != nil {
		return nil
	}
	if c := l.connecting; c != nil {
		if !c.isDone() || c.err == nil && alive(c.conn.Conn) {
			return c
		}
		if c.err == nil {
			_ = c.conn.Close()
		}
	}
	c := &connecting{done: make(chan struct{})}
	l.connecting = c
	l.away.Go(func() {
		l.attempt(c)
		if l.life.Err() != nil && c.err == nil {
			_ = c.conn.Close() // nobody fetches it
		}
	})
	return c
}

func (c *connecting) isDone() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// idleUnchecked is for how long a connection that was used is taken to be alive. Whether it is
// costs a call of the system, and matters after a restart of the server: what is sent on a
// dead connection has to be sent again, and might have been carried out.
const idleUnchecked = 20 * time.Millisecond

// attempt has go-redis get a connection.
func (l *line) attempt(c *connecting) {
	defer close(c.done)
	conn := &connection{}
	own := *l.opts
	own.PoolSize = 1
	dial := own.Dialer
	own.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		dialled, err := dial(ctx, network, addr)
		conn.Conn = dialled
		return dialled, err
	}
	conn.client = goredis.NewClient(&own)
	if c.err = conn.client.Ping(l.life).Err(); c.err != nil {
		_ = conn.Close()
		return
	}
	c.conn = conn
}

// abandon is the error of a call that was interrupted. The connection lasts until the server
// has answered what it was sent.
func (l *line) abandon(ctx context.Context, conn *connection, all bool) error {
	answered := make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	if !all || l.life.Err() != nil { // half a command is none
		_ = conn.Close()
		close(answered)
		return abandoned{ctx.Err(), answered}
	}
	begun := l.in.Buffered() > 0
	l.in = nil
	l.away.Go(func() {
		defer close(answered)
		defer conn.Close()
		if begun {
			return
		}
		_ = conn.SetDeadline(time.Now().Add(l.patient))
		defer context.AfterFunc(l.life, func() { _ = conn.SetDeadline(past) })()
		_, _ = conn.Read(make([]byte, 1))
	})
	return abandoned{ctx.Err(), answered}
}
