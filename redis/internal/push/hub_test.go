package push

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
)

// ear counts what it is told.
type ear struct{ subscribed, messages, ended atomic.Int32 }

func (e *ear) Subscribed()                    { e.subscribed.Add(1) }
func (e *ear) Message(string)                 { e.messages.Add(1) }
func (e *ear) Broken()                        {}
func (e *ear) Unreachable(error) (stays bool) { return true }
func (e *ear) End(error)                      { e.ended.Add(1) }

func hubOn(t *testing.T, opts *goredis.Options) (*Hub, *goredis.Client) {
	t.Helper()
	c := goredis.NewClient(opts)
	h := New(func(ctx context.Context) *goredis.PubSub { return c.Subscribe(ctx) })
	t.Cleanup(func() {
		h.Close()
		_ = c.Close()
	})
	return h, c
}

func TestListenerComesBackWhileTheChannelIsBeingLeft(t *testing.T) {
	t.Parallel()
	s := servertest.SharedRedis(t)
	h, c := hubOn(t, &goredis.Options{Addr: s.Addr(), Password: s.Password()})
	h.Times.Linger = time.Minute // so that the hub itself leaves nothing
	channel := backendtest.UniqueKey(t)
	for range 20 {
		first, second := &ear{}, &ear{}
		require.NoError(t, h.Add(channel, first))
		backendtest.Eventually(t, "the channel is subscribed to", func() bool { return first.subscribed.Load() > 0 })
		h.Remove(channel, first)
		require.Equal(t, []string{channel}, h.expire(time.Now().Add(time.Hour)))
		require.NoError(t, h.Add(channel, second))
		require.Zero(t, second.subscribed.Load())
		h.onUnsubscribed(channel) // as the server answers
		backendtest.Eventually(t, "the channel is subscribed to again", func() bool { return second.subscribed.Load() > 0 })
		require.NoError(t, c.Publish(t.Context(), channel, "1").Err())
		backendtest.Eventually(t, "the message is heard", func() bool { return second.messages.Load() > 0 })
		h.Remove(channel, second)
	}
}

// TestCloseWhileTheSubscriptionConnects: a server accepts the connection and says
// nothing. go-redis waits for it as long as its timeouts say, and Close does not.
func TestCloseWhileTheSubscriptionConnects(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	h, c := hubOn(t, &goredis.Options{Addr: silent.Addr().String(), ReadTimeout: time.Minute})
	listener := &ear{}
	require.NoError(t, h.Add("channel", listener))
	conn, err := silent.Accept()
	require.NoError(t, err)
	start := time.Now()
	h.Close()
	require.Less(t, time.Since(start), 30*time.Second)
	require.EqualValues(t, 1, listener.ended.Load())
	require.ErrorIs(t, h.Add("channel", listener), ErrClosed)
	require.NoError(t, silent.Close())
	require.NoError(t, conn.Close())
	h.done.Wait()
	require.NoError(t, c.Close())
}

type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}

// TestClosedHubWarnsOfNothing: a refusal that comes after the end is not told any more.
func TestClosedHubWarnsOfNothing(t *testing.T) {
	t.Parallel()
	told := 0
	h := New(nil)
	h.Denied = func(error) { told++ }
	h.Close()
	h.onRefused(serverError("NOPERM this user has no permissions to access one of the channels used as arguments"))
	require.Zero(t, told)
	h.closed = false
	h.onRefused(serverError("NOPERM this user has no permissions to access one of the channels used as arguments"))
	require.Equal(t, 1, told)
}
