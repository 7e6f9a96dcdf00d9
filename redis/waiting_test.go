package redislock

import (
	"context"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

// waitingOn is a Locker in which a goroutine waits for a key that somebody else holds
// for longer than the test takes, and whose watch is in force.
func waitingOn(t *testing.T, b *redisBackend, key string) <-chan error {
	t.Helper()
	l, err := lock.New(b, &lock.Options{TTL: ttl})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	got := make(chan error, 1)
	ctx := short(t, 20*time.Second)
	go func() {
		lease, err := l.Acquire(ctx, key)
		if err == nil {
			err = lease.Release(ctx)
		}
		got <- err
	}()
	eventually(t, "the key is watched", func() bool {
		b.hub.mu.Lock()
		defer b.hub.mu.Unlock()
		topic := b.hub.topics[namesOf(defaultPrefix, key).record()]
		return topic != nil && topic.state == subscribed
	})
	select {
	case err := <-got:
		require.Fail(t, "the wait was over before the key was free", "%v", err)
	case <-time.After(50 * time.Millisecond): // the question that follows the watch
	}
	return got
}

// pollMost is how long the sleep under a watch is at most: two seconds and a quarter of
// them, and what a busy machine adds.
const pollMost = 2500*time.Millisecond + time.Second

// A key that is free without a word to anybody is found within the poll interval,
// long before the lease that was there would have ended.
func TestPushThatNeverComes(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	key := uniqueKey(t)
	req := request(key)
	req.TTL = time.Minute
	granted(t, b, req)
	got := waitingOn(t, backendOn(t, c), key)
	require.NoError(t, c.Del(t.Context(), namesOf(defaultPrefix, key).record()).Err())
	free := time.Now()
	require.NoError(t, <-got)
	require.Less(t, time.Since(free), pollMost)
}

// A subscription that is dropped together with the push that was on its way wakes those
// who wait, before they would have asked again by themselves.
func TestSubscriptionDroppedWithThePush(t *testing.T) {
	t.Parallel()
	server := servertest.SharedRedis(t)
	p := servertest.Proxy(t, server.Addr())
	direct := backendOn(t, clientOf(t, server))
	key := uniqueKey(t)
	req := request(key)
	req.TTL = time.Minute
	hold, _ := granted(t, direct, req)
	c := goredis.NewClient(&goredis.Options{Addr: p.Addr(), Password: server.Password(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = c.Close() })
	got := waitingOn(t, backendOn(t, c), key)
	p.Freeze(servertest.ToClient)
	require.NoError(t, direct.Release(t.Context(), hold))
	p.Cut()
	p.Resume(servertest.ToClient)
	cut := time.Now()
	require.NoError(t, <-got)
	require.Less(t, time.Since(cut), 1500*time.Millisecond, "it was woken and did not poll")
}

// A record that goes under its holder ends the lease within a renewal period.
func TestDataThatGoesUnderAHolder(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	c := clientOf(t, server)
	for name, remove := range map[string]func(key string) error{
		"DEL":      func(key string) error { return c.Del(t.Context(), namesOf(defaultPrefix, key).record()).Err() },
		"FLUSHALL": func(string) error { return c.FlushAll(t.Context()).Err() },
	} {
		l, err := lock.New(backendOn(t, c), &lock.Options{TTL: 3 * time.Second})
		require.NoError(t, err)
		key := uniqueKey(t)
		lease, err := l.Acquire(t.Context(), key)
		require.NoError(t, err)
		first := lease.Token()
		require.NoError(t, remove(key))
		gone := time.Now()
		<-lease.Context().Done()
		require.Less(t, time.Since(gone), 2*time.Second, "%s: by the renewal, and not at the deadline", name)
		require.ErrorIs(t, context.Cause(lease.Context()), backend.ErrTakenOver, name)
		next, err := l.Acquire(t.Context(), key)
		require.NoError(t, err)
		require.Greater(t, next.Token(), first, "%s: tokens go on rising", name)
		require.NoError(t, next.Release(t.Context()))
		require.NoError(t, l.Close())
	}
}
