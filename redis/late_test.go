package redislock

import (
	"bytes"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

// oneLate leads to a server. It breaks the connection on which the text is first sent, and
// gives the server that request when it is told to.
func oneLate(t *testing.T, target, text string, deliver <-chan struct{}) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	var hit atomic.Bool
	pass := func(client, server net.Conn) {
		defer server.Close()
		buf := make([]byte, 65536)
		for {
			n, err := client.Read(buf)
			if err != nil {
				return
			}
			if bytes.Contains(buf[:n], []byte(text)) && hit.CompareAndSwap(false, true) {
				_ = client.Close()
				<-deliver
				_, _ = server.Write(buf[:n])
				_, _ = server.Read(buf)
				return
			}
			if _, err := server.Write(buf[:n]); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				continue
			}
			go pass(client, server)
			go func() {
				_, _ = io.Copy(client, server)
				_ = client.Close()
			}()
		}
	}()
	return l.Addr().String()
}

// A request that arrives when its repeat was granted and released does not keep the key
// for its TTL either.
func TestLateRequestOfAGrantIsCleanedUp(t *testing.T) {
	t.Parallel()
	for _, fair := range []bool{false, true} {
		t.Run("fair="+strconv.FormatBool(fair), func(t *testing.T) {
			t.Parallel()
			names := namesOf(defaultPrefix, "late")
			server := servertest.Redis(t)
			direct := redistest.Client(t, server)
			deliver := make(chan struct{})
			c := goredis.NewClient(&goredis.Options{Addr: oneLate(t, server.Addr(), names.record(), deliver)})
			t.Cleanup(func() { _ = c.Close() })
			l, err := New(t.Context(), c, &Options{Fair: fair, Lock: lock.Options{TTL: 10 * time.Minute}})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, l.Close()) })
			warm, err := l.Acquire(t.Context(), "warm") // the server has the scripts
			require.NoError(t, err)
			require.NoError(t, warm.Release(t.Context()))
			lease, err := l.TryAcquire(t.Context(), "late")
			require.NoError(t, err)
			require.NoError(t, lease.Release(t.Context()))
			token, err := direct.Get(t.Context(), names.counter()).Result()
			require.NoError(t, err)
			close(deliver)
			backendtest.Eventually(t, "it was granted", func() bool {
				return direct.Get(t.Context(), names.counter()).Val() != token
			})
			backendtest.Eventually(t, "the key is free", func() bool {
				return direct.Exists(t.Context(), names.record()).Val() == 0
			})
		})
	}
}

// A request that arrives after the clean-up of its acquisition does not keep the key for
// its TTL.
func TestLateRequestIsCleanedUp(t *testing.T) {
	t.Parallel()
	for _, fair := range []bool{false, true} {
		t.Run("fair="+strconv.FormatBool(fair), func(t *testing.T) {
			t.Parallel()
			names := namesOf(defaultPrefix, "late")
			server := servertest.Redis(t)
			direct := redistest.Client(t, server)
			opts := &Options{Fair: fair, Lock: lock.Options{TTL: 10 * time.Minute}}
			other, err := New(t.Context(), direct, opts)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, other.Close()) })
			deliver := make(chan struct{})
			c := goredis.NewClient(&goredis.Options{Addr: oneLate(t, server.Addr(), names.record(), deliver)})
			t.Cleanup(func() { _ = c.Close() })
			l, err := New(t.Context(), c, opts)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, l.Close()) })
			warm, err := l.Acquire(t.Context(), "warm") // the server has the scripts
			require.NoError(t, err)
			require.NoError(t, warm.Release(t.Context()))

			held, err := other.Acquire(t.Context(), "late")
			require.NoError(t, err)
			_, err = l.TryAcquire(t.Context(), "late")
			require.ErrorIs(t, err, lock.ErrOutcomeUnknown)
			require.NoError(t, held.Release(t.Context()))
			token, err := direct.Get(t.Context(), names.counter()).Result()
			require.NoError(t, err)
			close(deliver)
			backendtest.Eventually(t, "it was granted", func() bool {
				return direct.Get(t.Context(), names.counter()).Val() != token
			})
			backendtest.Eventually(t, "the key is free", func() bool {
				return direct.Exists(t.Context(), names.record()).Val() == 0
			})
		})
	}
}
