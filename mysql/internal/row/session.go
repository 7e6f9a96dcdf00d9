package row

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// lockWait is how long the server lets a statement wait for a row before it is sent
// again, and so how long a thread can be left there whose client died.
const lockWait = 2 * time.Second

// longestSilence is how long a statement that waits for a row can take: the server
// looks at the time once a second.
const longestSilence = lockWait + time.Second

// session is a connection of the server that belongs to one hold or wait at a
// time. Between two of them it has no open transaction.
type session struct {
	conn   *sql.Conn
	socket net.Conn      // nil if it can't be cut
	id     uint64        // CONNECTION_ID()
	mark   string        // a named lock that the session has for as long as it lives
	ttl    time.Duration // its wait_timeout

	checked backend.Instant // when the address last led to its server
	left    atomic.Bool     // a later look has found that it leads elsewhere

	asked  backend.Instant // when the last statement for a row was sent
	last   uint64          // the last token of its key that the backend knew then
	reused bool            // it was idle before
	used   backend.Instant // the last time
	isCut  bool            // because the context of a statement ended
}

// onConn is a session for statements on a connection of the control pool.
func onConn(conn *sql.Conn) *session { return &session{conn: conn, socket: wire.SocketOf(conn)} }

// sessions is the pool of sessions. database/sql only makes the connections:
// which one is used, and that none is replaced silently, is decided here.
type sessions struct {
	db      *sql.DB
	mariaDB bool
	clock   backend.Clock
	slots   chan struct{} // one for each session in use

	mu     sync.Mutex
	idle   []*session // the last one used is the last
	closed bool
}

func newSessions(connector driver.Connector, size int, mariaDB bool, clock backend.Clock) *sessions {
	p := &sessions{db: sql.OpenDB(ownConnector{connector}), mariaDB: mariaDB, clock: clock, slots: make(chan struct{}, size)}
	p.db.SetMaxIdleConns(-1) // a session that is closed is closed
	return p
}

// take returns a session whose idle timeout is the TTL. When all are in use it
// waits until one is given back or ctx ends.
func (p *sessions) take(ctx context.Context, ttl time.Duration) (*session, error) {
	if err := p.takeSlot(ctx); err != nil {
		return nil, err
	}
	for {
		s := p.pop(ttl)
		if s == nil {
			break
		}
		if p.alive(ctx, s) && p.setTTL(ctx, s, ttl) == nil {
			s.reused = true
			return s, nil
		}
		s.close()
	}
	s, err := p.open(ctx, ttl)
	if err != nil {
		<-p.slots
		return nil, err
	}
	return s, nil
}

// takeSlot waits for the right to use a session.
func (p *sessions) takeSlot(ctx context.Context) error {
	select {
	case p.slots <- struct{}{}:
		return nil
	default:
	}
	waiting, cancel := wire.EndingBefore(ctx, 50*time.Millisecond)
	defer cancel()
	select {
	case p.slots <- struct{}{}:
		return nil
	case <-waiting.Done():
	}
	err := fmt.Errorf("all %d connections of the pool are in use: %w", cap(p.slots), waiting.Err())
	if ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", backend.ErrNotSent, err)
	}
	return wire.NoConnection(err, "; each key that is held or waited for has one: make the pool larger (pool_size, or PoolSize)")
}

// pop takes an idle session out of the list, one with the right timeout if there
// is one, and drops those that the server has closed by now.
func (p *sessions) pop(ttl time.Duration) *session {
	p.mu.Lock()
	now := p.clock.Now()
	var old []*session
	kept := p.idle[:0]
	for _, s := range p.idle {
		if now.Sub(s.used) < s.ttl-s.ttl/10 {
			kept = append(kept, s)
		} else {
			old = append(old, s)
		}
	}
	clear(p.idle[len(kept):])
	p.idle = kept
	found := len(kept) - 1
	for i, s := range kept {
		if s.ttl == ttl {
			found = i
		}
	}
	var s *session
	if found >= 0 {
		s = kept[found]
		p.idle = append(kept[:found], kept[found+1:]...)
	}
	p.mu.Unlock()
	for _, o := range old {
		o.close()
	}
	return s
}

// alive asks the driver, not the server, whether the connection has been closed.
func (p *sessions) alive(ctx context.Context, s *session) bool {
	return s.conn.Raw(func(c any) error {
		if r, ok := c.(driver.SessionResetter); ok {
			return r.ResetSession(ctx)
		}
		return nil
	}) == nil
}

// setTTL has the server close the connection when it has been idle for the TTL.
func (p *sessions) setTTL(ctx context.Context, s *session, ttl time.Duration) error {
	if s.ttl == ttl {
		return nil
	}
	if err := s.exec(ctx, "SET SESSION wait_timeout = "+seconds(ttl)); err != nil {
		return err
	}
	s.ttl = ttl
	return nil
}

func seconds(d time.Duration) string { return strconv.FormatInt(int64(d/time.Second), 10) }

// open makes a new connection and sets what this package relies on, whatever the
// server's defaults are. All of it is of the session, which nobody else ever uses.
func (p *sessions) open(ctx context.Context, ttl time.Duration) (*session, error) {
	dialled := p.clock.Now()
	conn, err := p.dial(ctx)
	if err != nil {
		return nil, err
	}
	s := onConn(conn)
	s.mark, s.ttl, s.checked = "mortise:"+backend.NewID().Hex(), ttl, dialled
	vars := "SET SESSION autocommit = 0, completion_type = 0, wait_timeout = " + seconds(ttl) +
		", innodb_lock_wait_timeout = " + seconds(lockWait) + ", lock_wait_timeout = " + seconds(lockWait)
	if p.mariaDB {
		vars += ", max_statement_time = 0, idle_transaction_timeout = 0, idle_readonly_transaction_timeout = 0, idle_write_transaction_timeout = 0"
	} else {
		vars += ", max_execution_time = 0"
	}
	for _, q := range []string{"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE", vars} {
		if err == nil {
			err = s.exec(ctx, q)
		}
	}
	var marked sql.NullInt64
	var takesWrites bool
	if err == nil {
		err = conn.QueryRowContext(ctx, "SELECT CONNECTION_ID(), GET_LOCK('"+s.mark+"', 0), "+wire.Writable).Scan(&s.id, &marked, &takesWrites)
	}
	if err == nil && !takesWrites {
		err = wire.ErrReadOnly
	}
	if err == nil && marked.Int64 != 1 {
		err = fmt.Errorf("the server did not give the session a named lock (GET_LOCK)")
	}
	if err != nil {
		s.close()
		return nil, wire.Unsent(err) // nothing was asked for yet
	}
	return s, nil
}

// dial returns a new connection to where the address leads, which is closed when it is
// given back.
func (p *sessions) dial(ctx context.Context) (*sql.Conn, error) {
	conn, err := p.db.Conn(ctx)
	if err != nil {
		return nil, wire.NoConnection(err, "; the server has not answered a new connection: check the address, and whether the server hangs")
	}
	return conn, nil
}

// put gives a session back that has no open transaction.
func (p *sessions) put(s *session) {
	s.used = p.clock.Now()
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.idle = append(p.idle, s)
	}
	p.mu.Unlock()
	if closed {
		s.close()
	}
	<-p.slots
}

// discard closes a session in use. The server rolls back what is open on it as soon
// as it notices.
func (p *sessions) discard(s *session) {
	s.close()
	<-p.slots
}

// forget closes the idle sessions: they lead to a server that is to be left.
func (p *sessions) forget() {
	p.mu.Lock()
	idle := p.idle
	p.idle = nil
	p.mu.Unlock()
	for _, s := range idle {
		s.close()
	}
}

func (p *sessions) close() error {
	p.mu.Lock()
	idle := p.idle
	p.idle, p.closed = nil, true
	p.mu.Unlock()
	for _, s := range idle {
		s.close()
	}
	return wire.ClosePool(p.db)
}

// close closes the connection; no statement is under way on it.
func (s *session) close() { wire.Discard(s.conn) }

// exec sends a statement that has no rows.
func (s *session) exec(ctx context.Context, q string) error {
	_, err := s.change(ctx, q)
	return err
}

// change sends a statement that has no rows and no arguments. It goes to the driver
// without the detours that database/sql makes for those that have.
func (s *session) change(ctx context.Context, q string) (res driver.Result, err error) {
	err = s.send(ctx, func(ctx context.Context, c any) error {
		e, ok := c.(driver.ExecerContext)
		if !ok {
			return errNoDriver
		}
		var err error
		res, err = e.ExecContext(ctx, q, nil)
		return err
	})
	return res, err
}

// exists sends a query of one column and reports whether it has a row.
func (s *session) exists(ctx context.Context, q string) (bool, error) {
	_, found, err := s.first(ctx, q)
	return found, err
}

// first sends a query of one column and returns the value of its first row as text,
// which is empty for NULL.
func (s *session) first(ctx context.Context, q string) (value string, found bool, err error) {
	err = s.send(ctx, func(ctx context.Context, c any) error {
		e, ok := c.(driver.QueryerContext)
		if !ok {
			return errNoDriver
		}
		rows, err := e.QueryContext(ctx, q, nil)
		if err != nil {
			return err
		}
		row := make([]driver.Value, len(rows.Columns()))
		err = rows.Next(row)
		found = err == nil
		switch v := row[0].(type) {
		case nil:
		case []byte:
			value = string(v)
		default:
			value = fmt.Sprint(v)
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if cerr := rows.Close(); err == nil {
			err = cerr
		}
		return err
	})
	return value, found && err == nil, err
}

// send calls f with the connection of the driver. When ctx ends before f does, the
// connection is cut, which spares the driver its own watch. As with that, an answer
// that came all the same is an answer, and the connection is gone.
func (s *session) send(ctx context.Context, f func(ctx context.Context, c any) error) error {
	if s.socket == nil || ctx.Done() == nil {
		return s.conn.Raw(func(c any) error { return f(ctx, c) })
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	var settled atomic.Bool
	stop := context.AfterFunc(ctx, func() {
		if settled.CompareAndSwap(false, true) {
			_ = s.socket.Close()
		}
	})
	err := s.conn.Raw(func(c any) error { return f(context.WithoutCancel(ctx), c) })
	if !stop() && !settled.CompareAndSwap(false, true) {
		s.isCut = true
		if err != nil && wire.CodeOf(err) == 0 {
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
	return err
}

var errNoDriver = fmt.Errorf("%w: the connections of this driver.Connector take no plain statements; use one of github.com/go-sql-driver/mysql", backend.ErrUnsupported)
