package redislock

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

// TestCallersThatGiveUpUnsent: what was never sent needs no clean-up.
func TestCallersThatGiveUpUnsent(t *testing.T) {
	t.Parallel()
	for _, fair := range []bool{false, true} {
		t.Run("fair="+strconv.FormatBool(fair), func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t)
			p := servertest.Proxy(t, server.Addr())
			c := goredis.NewClient(&goredis.Options{Addr: p.Addr(), ContextTimeoutEnabled: true, ReadTimeout: time.Minute})
			t.Cleanup(func() { _ = c.Close() })
			nb, err := NewBackend(t.Context(), c, &Options{Fair: fair})
			require.NoError(t, err)
			b, ok := nb.(*redisBackend)
			if !ok {
				b = nb.(*fairBackend).b
			}
			b.together.patience = time.Hour // what is under way is not overdue
			l, err := lock.New(nb, nil)
			require.NoError(t, err)
			warm, err := l.Acquire(t.Context(), "warm")
			require.NoError(t, err)
			require.NoError(t, warm.Release(t.Context()))
			direct := redistest.Client(t, server)
			require.NoError(t, direct.ConfigResetStat(t.Context()).Err())
			p.Freeze(servertest.ToServer)
			// These are under way, so that the commands of the others wait.
			var busy, all sync.WaitGroup
			for i := range maxFlights {
				busy.Go(func() { _, _ = nb.Try(t.Context(), redistest.Request("busy"+strconv.Itoa(i))) })
			}
			backendtest.Eventually(t, "they are under way", func() bool {
				b.together.mu.Lock()
				defer b.together.mu.Unlock()
				return len(b.together.flights) == maxFlights
			})
			const callers = 300
			giveUp := make([]func(), callers)
			for i := range callers {
				get := []func(context.Context, string, ...lock.Option) (lock.Lease, error){l.TryAcquire, l.Acquire}[i%2]
				ctx, cancel := context.WithCancel(t.Context())
				returned := make(chan struct{})
				giveUp[i] = func() { cancel(); <-returned }
				all.Go(func() {
					defer close(returned)
					if _, err := get(ctx, "k"+strconv.Itoa(i)); !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
				})
			}
			backendtest.Eventually(t, "the others wait", func() bool {
				b.together.mu.Lock()
				defer b.together.mu.Unlock()
				return len(b.together.queue) == callers
			})
			for _, f := range giveUp { // one after another, so that each learns in time what became of its request
				f()
			}
			all.Wait()
			p.Resume()
			busy.Wait()
			require.NoError(t, l.Close())
			// Three tries, and little else: a caller may have been too late in learning
			// that nothing was sent.
			var calls int
			for line := range strings.Lines(direct.Info(t.Context(), "commandstats").Val()) {
				if rest, ok := strings.CutPrefix(line, "cmdstat_evalsha:calls="); ok {
					n, _, _ := strings.Cut(rest, ",")
					calls, err = strconv.Atoi(n)
					require.NoError(t, err)
				}
			}
			require.Less(t, calls, maxFlights+callers/10, "scripts")
			require.GreaterOrEqual(t, calls, maxFlights)
		})
	}
}

// What waits for a connection when its context ends was not sent, and what waits for a
// reply was.
func TestNotSent(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	p := servertest.Proxy(t, server.Addr())
	c := goredis.NewClient(&goredis.Options{Addr: p.Addr(), ContextTimeoutEnabled: true, PoolSize: 1, MaxRetries: -1})
	t.Cleanup(func() { _ = c.Close() })
	b := backendOn(t, c)
	hold, _ := backendtest.Granted(t, b, redistest.Request(backendtest.UniqueKey(t)))
	p.Freeze(servertest.ToServer)
	sent := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := b.Renew(ctx, hold)
		sent <- err
	}()
	backendtest.Eventually(t, "the connection is in use", func() bool { return c.PoolStats().IdleConns == 0 })
	_, err := b.Renew(backendtest.Short(t, 50*time.Millisecond), hold)
	require.ErrorIs(t, err, backend.ErrNotSent)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	err = <-sent
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, backend.ErrNotSent)
	p.Resume()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = b.Try(ended, redistest.Request(backendtest.UniqueKey(t)))
	require.ErrorIs(t, err, backend.ErrNotSent)
}
