package redislock

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

// lined is a backend as a URL opens it, behind a proxy, and one beside the proxy.
func lined(t *testing.T) (*redisBackend, *servertest.TCPProxy, *redisBackend) {
	t.Helper()
	return linedTo(t, servertest.SharedRedis(t))
}

func linedTo(t *testing.T, server *servertest.Server) (*redisBackend, *servertest.TCPProxy, *redisBackend) {
	t.Helper()
	p := servertest.Proxy(t, server.Addr())
	opts := redistest.Client(t, server).Options()
	opts.Addr, opts.Protocol, opts.ReadTimeout = p.Addr(), 2, time.Minute
	opts.Dialer = goredis.NewDialer(opts)
	client := goredis.NewClient(opts)
	t.Cleanup(func() { _ = client.Close() })
	b, err := newBackend(client, defaultPrefix, newLines(maxFlights, opts)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	require.True(t, b.Interruptible())
	return b, p, backendOn(t, redistest.Client(t, server))
}

// asking has a goroutine ask for the key.
func asking(ctx context.Context, b backend.Backend, req backend.Request) <-chan error {
	out := make(chan error, 1)
	go func() {
		_, err := b.Try(ctx, req)
		out <- err
	}()
	return out
}

func TestCutCallReturnsAndIsUnknown(t *testing.T) {
	t.Parallel()
	b, p, direct := lined(t)
	hold, _ := backendtest.Granted(t, b, redistest.Request(backendtest.UniqueKey(t)))
	require.NoError(t, b.Release(t.Context(), hold), "there is a connection")
	p.Freeze(servertest.ToClient)
	ctx, cancel := context.WithCancel(t.Context())
	req := redistest.Request(backendtest.UniqueKey(t))
	out := asking(ctx, b, req)
	backendtest.Eventually(t, "the command was applied", func() bool {
		_, err := direct.Inspect(t.Context(), req.Key)
		return err == nil
	})
	cancel()
	err := <-out // though the server says nothing
	require.ErrorIs(t, err, context.Canceled)
	for _, promise := range []error{backend.ErrNotSent, backend.ErrUnavailable, backend.ErrPermanent, backend.ErrHeld, backend.ErrNotHeld} {
		require.NotErrorIs(t, err, promise)
	}
	p.Resume()
	backendtest.Eventually(t, "its connection is closed when its reply is there", func() bool {
		return b.abandoned.some.Load() == 0
	})
	require.NoError(t, b.Release(t.Context(), backend.HoldOf(req)), "the line has another connection")
}

// A call that waits for a connection has sent nothing.
func TestCutWhileConnectingWasNotSent(t *testing.T) {
	t.Parallel()
	b, p, _ := lined(t)
	p.Freeze(servertest.ToClient)
	ctx, cancel := context.WithCancel(t.Context())
	req := redistest.Request(backendtest.UniqueKey(t))
	out := asking(ctx, b, req)
	backendtest.Eventually(t, "it connects", func() bool { return p.Open() > 0 })
	cancel()
	require.ErrorIs(t, <-out, backend.ErrNotSent)
	p.Resume()
	_, _ = backendtest.Granted(t, b, req) // on the connection that was made meanwhile
	require.Equal(t, 1, p.Accepted())
}

// What is sent for an acquisition comes after what was abandoned for it.
func TestReleaseAwaitsWhatWasAbandoned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var o abandonedOnes
		answered := make(chan struct{})
		o.note("id", abandoned{context.Canceled, answered})
		o.note("other", context.Canceled)
		begin := time.Now()
		o.settle(t.Context(), "other")
		require.Zero(t, time.Since(begin))
		o.settle(t.Context(), "id")
		require.Equal(t, landing, time.Since(begin), "it hangs")
		go func() {
			time.Sleep(landing / 2)
			close(answered)
		}()
		o.settle(t.Context(), "id")
		require.Equal(t, landing+landing/2, time.Since(begin))
		synctest.Wait()
		require.Zero(t, o.some.Load())
		require.Empty(t, o.answered)
	})
}

// On a server, or a machine, that is slow for a moment the release would overtake the try on
// another connection, and the key be kept by nobody for a TTL: past Close too.
func TestReleaseDoesNotOvertakeItsTry(t *testing.T) {
	t.Parallel()
	b, p, other := lined(t)
	_, _ = backendtest.Granted(t, b, redistest.Request(backendtest.UniqueKey(t))) // a connection is there
	p.Delay(40*time.Millisecond, servertest.ToServer)
	req := redistest.Request(backendtest.UniqueKey(t))
	ctx, cancel := context.WithCancel(t.Context())
	out := asking(ctx, b, req)
	time.Sleep(5 * time.Millisecond) // it is under way
	cancel()
	if err := <-out; errors.Is(err, backend.ErrNotSent) {
		t.Skip("the machine was slow: nothing was sent")
	}
	p.Delay(0, servertest.ToServer)
	begin := time.Now()
	err := b.Release(t.Context(), backend.HoldOf(req))
	if took := time.Since(begin); took > 200*time.Millisecond {
		t.Skipf("the machine was slow: the try had no answer for %s", took)
	}
	require.NoError(t, err)
	_, _ = backendtest.Granted(t, other, redistest.Request(req.Key))
}

// After a restart the server would answer a command on an old connection with nothing, and
// its outcome would be unknown.
func TestDeadConnectionIsSeenBeforeSending(t *testing.T) {
	t.Parallel()
	b, p, _ := lined(t)
	hold, _ := backendtest.Granted(t, b, redistest.Request(backendtest.UniqueKey(t)))
	l := b.lines[len(b.lines)-1]
	require.True(t, alive(l.conn.Conn))
	p.Cut()
	backendtest.Eventually(t, "it is dead", func() bool { return !alive(l.conn.Conn) })
	l.used = time.Now().Add(-idleUnchecked - time.Second)
	r, err := b.run(t.Context(), releaseScript, namesOf(defaultPrefix, hold.Key), hold.ID.Hex())
	require.NoError(t, err)
	require.False(t, r.repeated)
}

// A connection that has been idle for longer than a reply is awaited is as good as before.
func TestIdleConnectionIsUsedAgain(t *testing.T) {
	t.Parallel()
	b, p, _ := lined(t)
	hold, _ := backendtest.Granted(t, b, redistest.Request(backendtest.UniqueKey(t)))
	l := b.lines[len(b.lines)-1]
	require.NoError(t, l.conn.SetDeadline(past))
	l.used = past
	require.NoError(t, b.Release(t.Context(), hold))
	require.Equal(t, 1, p.Accepted())
}

// A server that says more than it was asked has nothing taken for the reply to the next command.
func TestSecondReplyIsThatOfNoCommand(t *testing.T) {
	t.Parallel()
	opts := redistest.Client(t, servertest.SharedRedis(t)).Options()
	opts.Protocol, opts.DB, opts.Password = 2, 0, ""
	opts.Dialer = func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		t.Cleanup(func() { _ = server.Close() })
		go func() {
			in := bufio.NewReader(server)
			for {
				command, err := readReply(in)
				if err != nil {
					return
				}
				words := command.([]any)
				switch words[0] {
				case "ping":
					_, err = server.Write([]byte("+PONG\r\n"))
				case "echo":
					_, err = fmt.Fprintf(server, "+%s\r\n+more\r\n", words[1])
				default:
					_, err = server.Write([]byte("-ERR unknown command\r\n"))
				}
				if err != nil {
					return
				}
			}
		}()
		return client, nil
	}
	l := newLines(1, opts)[0]
	defer l.close()
	for _, said := range []string{"one", "two"} {
		cmd := keyed(t.Context(), []any{"echo", said})
		require.NoError(t, l.process(t.Context(), cmd))
		require.Equal(t, said, cmd.Val())
	}
}

// A server that closes every connection at once, as a load balancer without one behind it,
// was sent no command.
func TestNoConnectionIsUnavailable(t *testing.T) {
	t.Parallel()
	b, p, _ := lined(t)
	p.LeadTo("127.0.0.1:1")
	_, err := b.Try(t.Context(), redistest.Request(backendtest.UniqueKey(t)))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.NotErrorIs(t, err, backend.ErrOutcomeUnknown)
	require.Positive(t, p.Accepted())
}

// What has reached the server, perhaps, is not undone by a failed attempt to connect again.
func TestNoConnectionAfterLostReplyIsUnknown(t *testing.T) {
	t.Parallel()
	b, p, _ := lined(t)
	hold, _ := backendtest.Granted(t, b, redistest.Request(backendtest.UniqueKey(t)))
	require.NoError(t, b.Release(t.Context(), hold))
	req := redistest.Request(backendtest.UniqueKey(t))
	p.DropReplies(1, req.Key)
	p.LeadTo("127.0.0.1:1")
	_, err := b.Try(t.Context(), req)
	require.Error(t, err)
	require.NotErrorIs(t, err, backend.ErrUnavailable)
}

func TestAliveWithTLS(t *testing.T) {
	t.Parallel()
	ours := servertest.NewAuthority(t, "ours")
	cert, err := tls.LoadX509KeyPair(ours.Client("server"))
	require.NoError(t, err)
	for name, end := range map[string]func(*tls.Conn) error{
		"with a word":    (*tls.Conn).Close,
		"without a word": func(c *tls.Conn) error { return c.NetConn().Close() },
		"after words":    func(c *tls.Conn) error { _, err := c.Write([]byte("words")); return err },
	} {
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}})
		require.NoError(t, err)
		defer l.Close()
		accepted := make(chan *tls.Conn, 1)
		go func() {
			c, err := l.Accept()
			if err == nil && c.(*tls.Conn).Handshake() == nil { // a ticket, too
				accepted <- c.(*tls.Conn)
			}
		}()
		client, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		require.NoError(t, err)
		defer client.Close()
		server := <-accepted
		defer server.Close()
		require.True(t, alive(client), name)
		require.NoError(t, end(server), name)
		backendtest.Eventually(t, name+", it is not alive", func() bool { return !alive(client) })
	}
}

// A line that hangs keeps no other command from being sent.
func TestHangingLinesHoldUpNobodyElse(t *testing.T) {
	t.Parallel()
	b, p, direct := lined(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p.StallReplies(maxFlights, t.Name()+"/hangs")
	var outs []<-chan error
	for range maxFlights {
		req := redistest.Request(t.Name() + "/hangs/" + backend.NewID().Hex())
		outs = append(outs, asking(ctx, b, req))
		backendtest.Eventually(t, "the command was applied", func() bool {
			_, err := direct.Inspect(t.Context(), req.Key)
			return err == nil
		})
	}
	_, _ = backendtest.Granted(t, b, redistest.Request(backendtest.UniqueKey(t)))
	cancel()
	for _, out := range outs {
		require.ErrorIs(t, <-out, context.Canceled)
	}
}

func TestCloseEndsWhatIsAbandoned(t *testing.T) {
	t.Parallel()
	server := servertest.SharedRedis(t)
	p := servertest.Proxy(t, server.Addr())
	opts := redistest.Client(t, server).Options()
	opts.Addr, opts.Protocol = p.Addr(), 2
	opts.Dialer = goredis.NewDialer(opts)
	l := newLines(1, opts)[0]
	require.NoError(t, l.process(t.Context(), keyed(t.Context(), []any{"ping"})))
	p.Freeze(servertest.ToClient)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	var a abandoned
	require.ErrorAs(t, l.process(ctx, keyed(t.Context(), []any{"ping"})), &a)
	l.close()
	<-a.answered
}

// What the end of a context has come too late for is not cut.
func TestInterruptAfterTheReplyCutsNothing(t *testing.T) {
	t.Parallel()
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	c := interruptible{conn: client}
	require.False(t, c.over())
	c.interrupt()
	go func() { _, _ = server.Write([]byte("x")) }()
	_, err := client.Read(make([]byte, 1))
	require.NoError(t, err)
}

// Close must find each of them, whichever are lent at that moment.
func TestLinesThatAreLentStayThoseOfTheBackend(t *testing.T) {
	t.Parallel()
	b, _, _ := lined(t)
	all := slices.Clone(b.lines)
	var callers sync.WaitGroup
	for range 2 * maxFlights {
		callers.Go(func() {
			for range 100 {
				_, err := b.Try(t.Context(), redistest.Request(backendtest.UniqueKey(t)))
				assert.NoError(t, err)
			}
		})
	}
	callers.Wait()
	for i, l := range all {
		require.Same(t, l, b.lines[i])
	}
}
