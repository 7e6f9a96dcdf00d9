package zklock

import (
	"errors"
	"fmt"
	"io"
	"net"
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
	"github.com/mortiselock/lock/internal/failure"
	"github.com/mortiselock/lock/internal/servertest"
)

// cutPoint is after how many bytes of a direction a connection is reset.
type cutPoint struct {
	up bool // of what the client sends
	n  int
}

// resetter forwards connections, and resets one after the other at the points that it was
// given, each a little later if it can't be met. Without points left it only forwards.
type resetter struct {
	l  net.Listener
	to string
	wg sync.WaitGroup

	mu     sync.Mutex
	points []cutPoint
	open   []net.Conn
}

func newResetter(t *testing.T, to string) *resetter {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &resetter{l: l, to: to}
	r.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r.wg.Go(func() { r.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		r.cut(nil)
		r.wg.Wait()
	})
	return r
}

// cut closes every connection, and resets the next ones at these points.
func (r *resetter) cut(points []cutPoint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.points = points
	for _, c := range r.open {
		_ = c.Close()
	}
	r.open = nil
}

func (r *resetter) left() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.points)
}

func (r *resetter) serve(c net.Conn) {
	up, err := net.Dial("tcp", r.to)
	if err != nil {
		_ = c.Close()
		return
	}
	var at *cutPoint
	r.mu.Lock()
	if len(r.points) > 0 {
		at, r.points = &r.points[0], r.points[1:]
	}
	r.open = append(r.open, c, up)
	r.mu.Unlock()
	end := sync.OnceFunc(func() {
		if at != nil {
			_ = c.(*net.TCPConn).SetLinger(0)
		}
		_ = c.Close()
		_ = up.Close()
	})
	defer end()
	forward := func(to io.Writer, from io.Reader, upwards bool) {
		defer end()
		if at != nil && at.up == upwards {
			from = io.LimitReader(from, int64(at.n))
		}
		_, _ = io.Copy(to, from)
	}
	r.wg.Go(func() { forward(up, c, true) })
	forward(c, up, false)
}

// Lengths of what a client with credentials says after it has connected again, and of what
// it is answered: the handshake, and the credentials.
const (
	helloLength    = 48
	greetingLength = 40
	authLength     = 4 + 8 + 4 + 4 + 6 + 4 + 10 // digest, app:secret
	authAnswer     = 20
)

// A connection that is reset at any byte of the handshake or of the credentials, once or
// again and again, stops neither the Locker nor its Close.
func TestResetsAfterAReconnect(t *testing.T) {
	t.Parallel()
	server := servertest.SharedZooKeeper(t)
	points, credentials := map[string][]cutPoint{}, map[string][]cutPoint{}
	for range 200 { // the moment at which the credentials meet a connection that was reset
		credentials["as the handshake is answered"] = append(credentials["as the handshake is answered"], cutPoint{false, greetingLength})
	}
	for n := range authLength + 1 {
		credentials["in the credentials"] = append(credentials["in the credentials"], cutPoint{true, helloLength + n})
	}
	for n := range authAnswer + 1 {
		credentials["in the answer to them"] = append(credentials["in the answer to them"], cutPoint{false, greetingLength + n})
	}
	for _, n := range []int{0, 1, 4, helloLength - 1, helloLength} {
		points["in the handshake"] = append(points["in the handshake"], cutPoint{true, n})
	}
	for _, n := range []int{0, 1, 4, greetingLength - 1} {
		points["in its answer"] = append(points["in its answer"], cutPoint{false, n})
	}
	resets := func(user string, points map[string][]cutPoint) {
		for where, points := range points {
			t.Run(fmt.Sprintf("%s, user %q", where, user), func(t *testing.T) {
				t.Parallel()
				r := newResetter(t, server.Addr())
				o := &Options{Lock: lock.Options{TTL: 4 * time.Second}, Prefix: "resets-" + backend.NewID().Hex(), User: user}
				if user != "" {
					o.Password = "secret"
				}
				l, err := New(t.Context(), []string{r.l.Addr().String()}, o)
				require.NoError(t, err)
				closed := make(chan error, 1)
				defer func() {
					go func() { closed <- l.Close() }()
					select {
					case err := <-closed:
						t.Logf("Close returned %v", err)
					case <-time.After(2 * time.Minute):
						t.Error("Close has not returned")
					}
				}()
				lease, err := l.Acquire(t.Context(), "before")
				require.NoError(t, err)
				require.NoError(t, lease.Release(t.Context()))
				r.cut(points)
				assert.Eventually(t, func() bool { return r.left() == 0 }, 5*time.Minute, 5*time.Millisecond, "the client connects again and again")
				lease, err = l.Acquire(backendtest.Short(t, 2*time.Minute), "after")
				if assert.NoError(t, err, "nothing is reset any more") {
					assert.NoError(t, lease.Release(t.Context()))
				}
			})
		}
	}
	resets("app", credentials)
	resets("app", points)
	resets("", points)
}

// failing is a connection whose writes fail, and whose reader notices nothing.
type failing struct {
	net.Conn
	closed atomic.Bool
}

func (f *failing) Write([]byte) (int, error) { return 0, errors.New("reset") }

func (f *failing) Close() error {
	f.closed.Store(true)
	return nil
}

// The client library is not told that a write has failed, but by the end of the connection.
func TestFailedWriteEndsTheConnection(t *testing.T) {
	t.Parallel()
	conn := &failing{}
	request := make([]byte, authLength)
	n, err := (&link{Conn: conn}).Write(request)
	require.NoError(t, err)
	require.Len(t, request, n)
	require.True(t, conn.closed.Load())
}

// A quota that is exceeded refuses for now: nothing is left on the server, and with more
// room the lock is granted.
func TestQuota(t *testing.T) {
	t.Parallel()
	server := servertest.ZooKeeper(t, servertest.WithArgs("enforceQuota=true"))
	conn := rawOn(t, server)
	all := zk.WorldACL(zk.PermAll)
	for path, data := range map[string]string{"/q": "", "/zookeeper/quota/q": ""} {
		_, err := conn.Create(path, []byte(data), 0, all)
		require.NoError(t, err)
	}
	const limits = "/zookeeper/quota/q/zookeeper_limits"
	_, err := conn.Create(limits, []byte("count=4,bytes=-1=;byteHardLimit=-1;countHardLimit=4"), 0, all)
	require.NoError(t, err)
	_, err = conn.Create("/zookeeper/quota/q/zookeeper_stats", []byte("count=1,bytes=0"), 0, all)
	require.NoError(t, err)
	b := backendOn(t, &Options{Prefix: "q"}, server)
	l := lockerOn(t, b)
	var held []lock.Lease
	refused := error(nil)
	for i := 0; refused == nil; i++ {
		require.Less(t, i, 10, "the quota does nothing")
		lease, err := l.TryAcquire(t.Context(), fmt.Sprint("k", i))
		if refused = err; err == nil {
			held = append(held, lease)
		}
	}
	_, queued := b.Enqueue(t.Context(), request("more"))
	for _, err := range []error{refused, queued} {
		require.ErrorIs(t, err, lock.ErrUnavailable)
		require.NotErrorIs(t, err, lock.ErrOutcomeUnknown)
		require.ErrorContains(t, err, "quota")
	}
	_, err = conn.Set(limits, []byte("count=100,bytes=-1=;byteHardLimit=-1;countHardLimit=100"), -1)
	require.NoError(t, err)
	lease, err := l.Acquire(t.Context(), "more")
	require.NoError(t, err)
	for _, lease := range append(held, lease) {
		require.NoError(t, lease.Release(t.Context()))
	}
}

// What the server answers is a refusal only where it is one.
func TestAnswersWithoutAName(t *testing.T) {
	t.Parallel()
	for code, sentinel := range map[int]error{
		-1: nil, -2: nil, -3: nil, -4: nil, -5: nil, -7: nil, -13: nil, -125: backend.ErrUnavailable, -127: backend.ErrUnavailable,
		-119: backend.ErrUnavailable, -6: backend.ErrPermanent, -60: nil, -120: backend.ErrPermanent, -124: backend.ErrPermanent,
	} {
		err := fmt.Errorf("unknown error: %d", code)
		assert.Equal(t, sentinel, sentinelFor(err), "%d", code)
		assert.True(t, answered(err))
		told := writeError("k", err)
		assert.ErrorContains(t, told, fmt.Sprint(code))
		if sentinel != nil {
			assert.ErrorIs(t, told, sentinel)
		}
		assert.NoError(t, sentinelFor(failure.Unmarked(fmt.Errorf("%w; later", err))))
	}
}
