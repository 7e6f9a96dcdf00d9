package redislock

import (
	"context"
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

// waitingOn is a Locker in which a goroutine waits for a key that somebody else holds
// for longer than it waits, and whose watch is in force.
func waitingOn(t *testing.T, b *redisBackend, key string) <-chan error {
	t.Helper()
	l, err := lock.New(b, &lock.Options{TTL: ttl})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	got := make(chan error, 1)
	ctx := backendtest.Short(t, time.Minute)
	go func() {
		lease, err := l.Acquire(ctx, key)
		if err == nil {
			err = lease.Release(ctx)
		}
		got <- err
	}()
	backendtest.Eventually(t, "the key is watched", func() bool {
		w, channel := newWatcher(true, ""), namesOf(defaultPrefix, key).record()
		defer b.hub.Remove(channel, w)
		return b.hub.Join(channel, w)
	})
	select {
	case err := <-got:
		require.Fail(t, "the wait was over before the key was free", "%v", err)
	case <-time.After(50 * time.Millisecond): // the question that follows the watch
	}
	return got
}

// A key that is free without a word to anybody is found by a poll, long before the lease
// that was there would have ended.
func TestPushThatNeverComes(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	key := backendtest.UniqueKey(t)
	backendtest.Granted(t, b, redistest.Brief(key, time.Hour))
	got := waitingOn(t, backendOn(t, c), key)
	require.NoError(t, c.Del(t.Context(), namesOf(defaultPrefix, key).record()).Err())
	require.NoError(t, <-got)
}

// A subscription that is dropped together with the push that was on its way signals every
// watch, and those who wait get the key.
func TestSubscriptionDroppedWithThePush(t *testing.T) {
	t.Parallel()
	server := servertest.SharedRedis(t)
	p := servertest.Proxy(t, server.Addr())
	direct := backendOn(t, redistest.Client(t, server))
	key := backendtest.UniqueKey(t)
	hold, _ := backendtest.Granted(t, direct, redistest.Brief(key, time.Hour))
	c := goredis.NewClient(&goredis.Options{Addr: p.Addr(), Password: server.Password(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = c.Close() })
	b := backendOn(t, c)
	got := waitingOn(t, b, key)
	watch, err := b.Watch(t.Context(), key)
	require.NoError(t, err)
	p.Freeze(servertest.ToClient)
	require.NoError(t, direct.Release(t.Context(), hold))
	p.Cut()
	signalled(t, watch)
	p.Resume(servertest.ToClient)
	require.NoError(t, <-got)
}

// A record that goes under its holder ends the lease by the next renewal, and not at the
// deadline.
func TestDataThatGoesUnderAHolder(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	c := redistest.Client(t, server)
	for name, remove := range map[string]func(key string) error{
		"DEL":      func(key string) error { return c.Del(t.Context(), namesOf(defaultPrefix, key).record()).Err() },
		"FLUSHALL": func(string) error { return c.FlushAll(t.Context()).Err() },
	} {
		l, err := lock.New(backendOn(t, c), &lock.Options{TTL: 6 * time.Second})
		require.NoError(t, err)
		key := backendtest.UniqueKey(t)
		lease, err := l.Acquire(t.Context(), key)
		require.NoError(t, err)
		first := lease.Token()
		require.NoError(t, remove(key))
		<-lease.Context().Done()
		require.ErrorIs(t, context.Cause(lease.Context()), backend.ErrTakenOver, name)
		next, err := l.Acquire(t.Context(), key)
		require.NoError(t, err)
		require.Greater(t, next.Token(), first, "%s: tokens go on rising", name)
		require.NoError(t, next.Release(t.Context()))
		require.NoError(t, l.Close())
	}
}
