package zklock

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
)

// expire ends the session of the backend on the server, as its timeout would.
func expire(t testing.TB, b *zkBackend, addr string) {
	t.Helper()
	b.mu.Lock()
	s := b.current
	b.mu.Unlock()
	require.NoError(t, endOnServer(backendtest.Short(t, time.Minute), s, addr, s.ended))
}

// endOnServer ends a session as its timeout would: a second connection takes it over and
// closes it, again and again until it is over.
func endOnServer(ctx context.Context, s *session, addr string, over func() bool) error {
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	l.mu.Lock()
	id, password := l.greeting[12:20], l.greeting[24:40]
	l.mu.Unlock()
	var hello []byte
	hello = binary.BigEndian.AppendUint32(hello, 44)    // length
	hello = binary.BigEndian.AppendUint32(hello, 0)     // version
	hello = binary.BigEndian.AppendUint64(hello, 0)     // last transaction seen
	hello = binary.BigEndian.AppendUint32(hello, 10000) // timeout
	hello = append(hello, id...)
	hello = binary.BigEndian.AppendUint32(hello, 16)
	hello = append(hello, password...)
	hello = binary.BigEndian.AppendUint32(hello, 8)          // and at once, since the other takes it back:
	hello = binary.BigEndian.AppendUint32(hello, 1)          // request 1
	hello = binary.BigEndian.AppendUint32(hello, 0xfffffff5) // closeSession
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err = conn.Write(hello); err == nil {
			_, _ = io.ReadAll(conn)
		}
		_ = conn.Close()
		for range 20 {
			switch {
			case over():
				return nil
			case ctx.Err() != nil:
				return ctx.Err()
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

func TestExpiredSessionLosesItsHolds(t *testing.T) {
	t.Parallel()
	server := servertest.SharedZooKeeper(t)
	b, other := backendOn(t, nil, server), shared(t)
	l := lockerOn(t, b)
	key := backendtest.UniqueKey(t)
	one, err := l.Acquire(t.Context(), key)
	require.NoError(t, err)
	two, err := l.Acquire(t.Context(), key+"/owned", lock.WithOwner("me"))
	require.NoError(t, err)
	before := b.current.conn.SessionID()
	expire(t, b, server.Addr())
	for _, lease := range []lock.Lease{one, two} {
		<-lease.Context().Done()
		require.ErrorIs(t, context.Cause(lease.Context()), backend.ErrSessionLost)
		require.ErrorIs(t, lease.Renew(t.Context()), backend.ErrNotHeld)
		require.ErrorIs(t, lease.Release(t.Context()), backend.ErrSessionLost)
	}
	hold, _ := backendtest.Granted(t, other, request(key))
	require.NoError(t, other.Release(t.Context(), hold))
	// A new session serves what comes next.
	again, err := l.Acquire(t.Context(), key)
	require.NoError(t, err)
	assert.Greater(t, again.Token(), one.Token())
	b.mu.Lock()
	assert.NotEqual(t, before, b.current.conn.SessionID())
	b.mu.Unlock()
	require.NoError(t, again.Release(t.Context()))
}

// A try that is under way when its session expires is not refused for that: nothing of
// it can take effect any more, and the next session is asked.
func TestTryGoesOnInTheNextSession(t *testing.T) {
	t.Parallel()
	server := servertest.SharedZooKeeper(t)
	proxy := servertest.Proxy(t, server.Addr())
	b, err := NewBackend(t.Context(), []string{proxy.Addr()}, &Options{Lock: lock.Options{TTL: ttl}})
	require.NoError(t, err)
	defer b.Close()
	hold, _ := backendtest.Granted(t, b, request(backendtest.UniqueKey(t)))
	require.NoError(t, b.Release(t.Context(), hold))
	zb := b.(*zkBackend)
	first, err := zb.session()
	require.NoError(t, err)
	proxy.Freeze()
	type answer struct {
		g   backend.Grant
		err error
	}
	answers := make(chan answer, 1)
	limited, cancel := context.WithTimeout(t.Context(), ttl)
	defer cancel()
	again := request(hold.Key)
	go func() {
		g, err := b.Try(limited, again)
		answers <- answer{g, err}
	}()
	backendtest.Eventually(t, "the try is under way", func() bool { return first.find(again.ID) != nil })
	first.end(true)
	proxy.Resume()
	a := <-answers
	require.NoError(t, a.err)
	assert.Greater(t, a.g.Token, hold.Token)
	require.NoError(t, b.Release(t.Context(), backend.HoldOf(again)))
}

// Connections break again and again under a waiter, beside other requests. The client
// library sets its watches anew on each, and the waiter looks for itself.
func TestReconnectsUnderAWaiter(t *testing.T) {
	t.Parallel()
	server := servertest.SharedZooKeeper(t)
	opts := Options{Prefix: "reconnects-" + backendtest.UniqueKey(t), Lock: lock.Options{TTL: longest}} // nothing expires meanwhile
	holder, b := lockerOn(t, backendOn(t, &opts, server)), backendOn(t, &opts, server)
	key := backendtest.UniqueKey(t)
	lease, err := holder.Acquire(t.Context(), key)
	require.NoError(t, err)
	place, err := b.Enqueue(t.Context(), backend.Request{Key: key, ID: backend.NewID(), TTL: longest})
	require.NoError(t, err)
	waited := make(chan error, 1)
	go func() { _, err := place.Wait(t.Context()); waited <- err }()
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				_, _ = b.Inspect(ctx, key)
			}
		})
	}
	s := b.current
	for range 30 {
		era, _ := s.connection()
		backendtest.Eventually(t, "it watches", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.attached && s.watches[ticketPath(place)] != nil
		})
		s.mu.Lock()
		l := s.link
		s.mu.Unlock()
		_ = l.Close()
		backendtest.Eventually(t, "there is another connection", func() bool {
			now, _ := s.connection()
			return now != era && s.sameConnection(now)
		})
	}
	stop()
	wg.Wait()
	require.NoError(t, lease.Release(t.Context()))
	require.NoError(t, <-waited)
	require.NoError(t, place.Withdraw(t.Context()))
	require.NoError(t, b.RaiseFloor(t.Context(), uint64(time.Now().Add(time.Hour).UnixMicro())), "which ends the watches of the floor")
	backendtest.Eventually(t, "no watch is remembered", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.sweepWatches()
		return len(s.watches)+len(s.retired) == 0
	})
}

// A waiter whose session has ended is not granted by it, and waits on in a new one.
func TestExpiredSessionOfAWaiter(t *testing.T) {
	t.Parallel()
	server := servertest.SharedZooKeeper(t)
	holder, waiter := shared(t), backendOn(t, nil, server)
	key := backendtest.UniqueKey(t)
	hold, _ := backendtest.Granted(t, holder, request(key))
	place, err := waiter.Enqueue(t.Context(), request(key))
	require.NoError(t, err)
	direct := make(chan error, 1)
	go func() { _, err := place.Wait(t.Context()); direct <- err }()
	l := lockerOn(t, waiter)
	got := make(chan lock.Lease, 1)
	go func() {
		lease, err := l.Acquire(t.Context(), key)
		assert.NoError(t, err)
		got <- lease
	}()
	expire(t, waiter, server.Addr())
	require.ErrorIs(t, <-direct, backend.ErrSessionLost)
	require.NoError(t, place.Withdraw(t.Context()))
	require.NoError(t, holder.Release(t.Context(), hold))
	lease := <-got
	require.NoError(t, lease.Release(t.Context()))
}

// gate is a way to the server on which the answers can be kept back.
type gate struct {
	listener net.Listener
	server   string
	deaf     atomic.Bool // requests pass, answers don't
	mu       sync.Mutex
	conns    []net.Conn
	wg       sync.WaitGroup
}

func gateTo(t testing.TB, server string) *gate {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := &gate{listener: listener, server: server}
	g.wg.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", g.server)
			if err != nil {
				_ = in.Close()
				continue
			}
			g.mu.Lock()
			g.conns = append(g.conns, in, out)
			g.mu.Unlock()
			g.wg.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
			g.wg.Go(func() {
				buf := make([]byte, 64<<10)
				for {
					n, err := out.Read(buf)
					if err != nil || g.deaf.Load() && n > 0 && g.swallow() {
						break
					}
					if _, err := in.Write(buf[:n]); err != nil {
						break
					}
				}
				_ = in.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		g.cut()
		g.wg.Wait()
	})
	return g
}

// swallow lets the answer vanish together with the connection, once.
func (g *gate) swallow() bool { return g.deaf.CompareAndSwap(true, false) }

func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.conns {
		_ = c.Close()
	}
	g.conns = nil
}

// The server has applied a request, and its answer is lost with the connection.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	server := servertest.SharedZooKeeper(t)
	g := gateTo(t, server.Addr())
	b, err := NewBackend(t.Context(), []string{g.listener.Addr().String()}, &Options{Lock: lock.Options{TTL: ttl}})
	require.NoError(t, err)
	l := lockerOn(t, b)
	conn, other := rawOn(t, server), shared(t)
	var lastSession int64
	for i := range 20 {
		key := backendtest.UniqueKey(t)
		warm, err := l.TryAcquire(t.Context(), key)
		require.NoError(t, err)
		require.NoError(t, warm.Release(t.Context()))
		// The keeper's reads may meet the gate first; over the rounds all kinds do.
		g.deaf.Store(true)
		acquire := l.Acquire
		if i%2 == 0 {
			acquire = l.TryAcquire
		}
		lease, err := acquire(t.Context(), key)
		if err != nil {
			require.ErrorIs(t, err, backend.ErrUnavailable, "a read whose answer is lost has changed nothing")
			backendtest.Eventually(t, "nothing is left", func() bool { return len(ours(t, conn, other.dir(key))) == 0 })
			continue
		}
		require.Len(t, ours(t, conn, other.dir(key)), 1, "the grant was found and not made twice")
		g.deaf.Store(true)
		backendtest.Eventually(t, "the hold is renewed in the end", func() bool { return lease.Renew(t.Context()) == nil })
		if i%4 < 2 {
			g.deaf.Store(true)
		}
		if err := lease.Release(t.Context()); err != nil {
			require.ErrorIs(t, err, backend.ErrOutcomeUnknown)
		}
		backendtest.Eventually(t, "the key is free", func() bool { return len(ours(t, conn, other.dir(key))) == 0 })
		id := b.(*zkBackend).current.conn.SessionID()
		if lastSession != 0 {
			require.Equal(t, lastSession, id, "no session was lost")
		}
		lastSession = id
	}
}

// What is found by its name is adopted only if it belongs to the present session.
func TestNodeOfAnotherSessionIsNotAdopted(t *testing.T) {
	t.Parallel()
	b, conn := shared(t), rawOn(t, servertest.SharedZooKeeper(t))
	req := request(backendtest.UniqueKey(t))
	n, _, err := b.current.record(req)
	require.NoError(t, err)
	require.NoError(t, b.current.makeDir(t.Context(), n.dir))
	theirs, err := conn.Create(n.dir+"/"+n.name, nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	_, err = n.adopt(t.Context())
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.Empty(t, n.path)
	require.NoError(t, conn.Delete(theirs, -1))
	c, err := n.adopt(t.Context())
	require.NoError(t, err)
	require.Empty(t, c.path, "there is nothing any more")
}

// The caller gives up while the server stands still, and the server grants afterwards:
// the node goes, although the process and its session live on.
func TestLateGrant(t *testing.T) {
	t.Parallel()
	server := servertest.ZooKeeper(t, servertest.WithControl())
	b, other := backendOn(t, &Options{Lock: lock.Options{TTL: longest}}, server), backendOn(t, nil, server)
	key := backendtest.UniqueKey(t)
	hold, _ := backendtest.Granted(t, b, request(key)) // the parents exist
	require.NoError(t, b.Release(t.Context(), hold))
	server.Freeze(t)
	req := request(key)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := b.Enqueue(ctx, req)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, backend.ErrOutcomeUnknown)
	server.Resume(t)
	conn := rawOn(t, server)
	backendtest.Eventually(t, "the late grant has gone", func() bool {
		b.current.mu.Lock()
		left := len(b.current.places)
		b.current.mu.Unlock()
		return left == 0 && len(ours(t, conn, b.dir(key))) == 0
	})
	hold, _ = backendtest.Granted(t, other, request(key))
	require.NoError(t, other.Release(t.Context(), hold))
	assert.ErrorIs(t, b.Release(t.Context(), backend.HoldOf(req)), backend.ErrNotHeld)
}

// A node whose record is not on this side is found by its name.
func TestReleaseOfAnUnknownAcquisition(t *testing.T) {
	t.Parallel()
	a, b := shared(t), shared(t)
	hold, _ := backendtest.Granted(t, a, request(backendtest.UniqueKey(t)))
	require.NoError(t, b.Release(t.Context(), hold))
	require.ErrorIs(t, b.Release(t.Context(), hold), backend.ErrNotHeld)
	_, err := a.Renew(t.Context(), hold)
	require.ErrorIs(t, err, backend.ErrTakenOver)
}

func TestCloseWithoutServer(t *testing.T) {
	t.Parallel()
	server := servertest.ZooKeeper(t, servertest.WithControl())
	b := backendOn(t, nil, server)
	server.Kill(t)
	backendtest.Eventually(t, "the connection is gone", func() bool {
		b.current.mu.Lock()
		defer b.current.mu.Unlock()
		return !b.current.attached && b.current.failures > 0
	})
	_, err := b.Try(backendtest.Short(t, time.Minute), request(backendtest.UniqueKey(t)))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.NotErrorIs(t, err, context.DeadlineExceeded, "a try waits for servers that refuse")
	require.NoError(t, b.Close())
	_, err = b.Try(t.Context(), request(backendtest.UniqueKey(t)))
	require.ErrorIs(t, err, backend.ErrClosed)
}

// lateLog counts the records that are still being written when Close has returned.
type lateLog struct {
	slog.Handler
	closed chan struct{}
	late   atomic.Int64
}

func (l *lateLog) Enabled(context.Context, slog.Level) bool { return true }

func (l *lateLog) Handle(_ context.Context, r slog.Record) error {
	if !strings.Contains(r.Message, "not removed") {
		return nil
	}
	select {
	case <-l.closed:
		l.late.Add(1)
	case <-time.After(3 * time.Second): // longer than anything else that Close waits for
	}
	return nil
}

// TestNothingIsLoggedAfterClose: Close waits for those who remove nodes.
func TestNothingIsLoggedAfterClose(t *testing.T) {
	t.Parallel()
	server := servertest.SharedZooKeeper(t)
	proxy := servertest.Proxy(t, server.Addr())
	log := &lateLog{Handler: slog.DiscardHandler, closed: make(chan struct{})}
	b, err := NewBackend(t.Context(), []string{proxy.Addr()}, &Options{Lock: lock.Options{TTL: longest, Logger: slog.New(log)}})
	require.NoError(t, err)
	req := backend.Request{Key: backendtest.UniqueKey(t), ID: backend.NewID(), TTL: longest}
	_, err = b.Try(t.Context(), req)
	require.NoError(t, err)
	s := b.(*zkBackend).current
	proxy.Freeze()
	s.find(req.ID).doom()
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.reaping
	}, time.Minute, time.Millisecond)
	require.NoError(t, b.Close())
	close(log.closed)
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return !s.reaping
	}, time.Minute, time.Millisecond)
	assert.Zero(t, log.late.Load())
}

// The client library reads what was made also when its Close has ended the request.
func TestCloseWhileContainersAreMade(t *testing.T) {
	t.Parallel()
	for range 30 {
		b := shared(t)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() { _, _ = b.Try(t.Context(), request(backendtest.UniqueKey(t))) })
		}
		time.Sleep(rand.N(5 * time.Millisecond))
		require.NoError(t, b.Close())
		all.Wait()
	}
}
