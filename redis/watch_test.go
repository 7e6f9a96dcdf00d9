package redislock

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/push"
	"github.com/mortiselock/lock/redis/internal/redistest"
	"github.com/mortiselock/lock/redis/internal/wire"
)

// signalled waits for a signal, and fails when there is none.
func signalled(t testing.TB, w <-chan backend.Hint) {
	t.Helper()
	select {
	case <-w:
	case <-time.After(time.Minute):
		require.Fail(t, "no signal")
	}
}

func drain(w <-chan backend.Hint) {
	for {
		select {
		case <-w:
		default:
			return
		}
	}
}

func TestWatchHearsReleases(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	other := backendOn(t, c)
	key, quiet := backendtest.UniqueKey(t), backendtest.UniqueKey(t)
	silent, err := b.Watch(t.Context(), quiet)
	require.NoError(t, err)
	one, err := b.Watch(t.Context(), key)
	require.NoError(t, err)
	two, err := b.Watch(t.Context(), key)
	require.NoError(t, err)
	for range 20 {
		hold, _ := backendtest.Granted(t, other, redistest.Request(key))
		require.NoError(t, other.Release(t.Context(), hold))
		signalled(t, one)
		signalled(t, two)
	}
	_, g := backendtest.Granted(t, other, redistest.Request(key))
	require.NoError(t, other.ForceRelease(t.Context(), key, g.Token))
	signalled(t, one)

	first, _ := backendtest.Granted(t, other, ownedRequest(key, "a", ttl))
	second, _ := backendtest.Granted(t, other, ownedRequest(key, "a", ttl))
	drain(two)
	require.NoError(t, other.Release(t.Context(), first))
	require.NoError(t, other.Release(t.Context(), second))
	signalled(t, two)
	select {
	case <-silent:
		require.Fail(t, "a signal for another key")
	default:
	}
}

// A hint counts the clients that watch, not their watches.
func TestHintsCountTheClients(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	key := backendtest.UniqueKey(t)
	var watches []<-chan backend.Hint
	clients := []*redisBackend{b, backendOn(t, c), backendOn(t, c)}
	for _, client := range clients {
		for range 2 {
			w, err := client.Watch(t.Context(), key)
			require.NoError(t, err)
			watches = append(watches, w)
		}
	}
	hold, _ := backendtest.Granted(t, b, redistest.Request(key))
	require.NoError(t, b.Release(t.Context(), hold))
	for _, w := range watches {
		require.Equal(t, len(clients), (<-w).Watchers)
	}
	_, g := backendtest.Granted(t, b, redistest.Request(key))
	require.NoError(t, b.ForceRelease(t.Context(), key, g.Token))
	require.Equal(t, len(clients), (<-watches[0]).Watchers)
}

// Of a crowd some are told of each release, as many as it says, and in time everybody is.
func TestReleaseTellsSomeOfACrowd(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	for _, n := range []int{64, 100} {
		key := backendtest.UniqueKey(t)
		clients := make([]*redisBackend, n)
		watches := make([]<-chan backend.Hint, n)
		for i := range clients {
			clients[i] = backendOn(t, c)
			var err error
			watches[i], err = clients[i].Watch(t.Context(), key)
			require.NoError(t, err)
		}
		told := make([]bool, n)
		for release := 0; slices.Contains(told, false); release++ {
			require.Less(t, release, 1000, "some are never told")
			from := b
			if release%2 == 1 {
				from = clients[release%n]
			}
			hold, _ := backendtest.Granted(t, from, redistest.Request(key))
			others, err := from.ReleaseTelling(t.Context(), hold)
			require.NoError(t, err)
			watching := n
			if from != b {
				watching--
			}
			require.Equal(t, watching, others)
			heard, have := 0, 0
			backendtest.Eventually(t, "as many hear of the release as each of them was told", func() bool {
				for i, w := range watches {
					select {
					case hint := <-w:
						told[i], have = true, hint.Watchers
						heard++
					default:
					}
				}
				return heard > 0 && heard == have
			})
			require.Less(t, heard, n/2)
		}
	}
}

// A release right after Watch has returned is never missed.
func TestWatchIsInForceWhenItReturns(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	for range 200 {
		key := backendtest.UniqueKey(t)
		hold, _ := backendtest.Granted(t, b, redistest.Request(key))
		ctx, cancel := context.WithCancel(t.Context())
		w, err := b.Watch(ctx, key)
		require.NoError(t, err)
		channel := namesOf(defaultPrefix, key).record()
		require.EqualValues(t, 1, c.PubSubNumSub(t.Context(), channel).Val()[channel])
		require.NoError(t, b.Release(t.Context(), hold))
		signalled(t, w)
		cancel()
	}
}

func TestWatchersShareOneConnection(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	c := redistest.Client(t, server)
	b := backendOn(t, c)
	count := func() int {
		list, err := c.Do(t.Context(), "client", "list", "type", "pubsub").Text()
		require.NoError(t, err)
		return strings.Count(list, "\n")
	}
	require.Zero(t, count())

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			key := backendtest.UniqueKey(t)
			for range 2 {
				if _, err := b.Watch(ctx, key); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, 1, count())
	channels, err := c.PubSubChannels(t.Context(), "*").Result()
	require.NoError(t, err)
	require.Len(t, channels, 2*50, "one for all who watch the key, and one for those of its part")

	cancel()
	backendtest.Eventually(t, "the channels are left", func() bool {
		channels, err := c.PubSubChannels(t.Context(), "*").Result()
		require.NoError(t, err)
		return len(channels) == 0
	})
	backendtest.Eventually(t, "the connection is closed when nobody watches", func() bool { return count() == 0 })

	again, err := b.Watch(t.Context(), "again")
	require.NoError(t, err)
	hold, _ := backendtest.Granted(t, b, redistest.Request("again"))
	require.NoError(t, b.Release(t.Context(), hold))
	signalled(t, again)
}

func TestDroppedSubscriptionWakesEverybody(t *testing.T) {
	t.Parallel()
	c := redistest.Client(t, servertest.Redis(t))
	b := backendOn(t, c)
	var keys []string
	var watches []<-chan backend.Hint
	for range 10 {
		key := backendtest.UniqueKey(t)
		w, err := b.Watch(t.Context(), key)
		require.NoError(t, err)
		keys, watches = append(keys, key), append(watches, w)
	}
	for range 3 {
		require.NoError(t, c.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err())
		for _, w := range watches {
			signalled(t, w)
		}
		// And the watches are in force again, without being asked for.
		for i, key := range keys {
			backendtest.Eventually(t, "the release is heard", func() bool {
				drain(watches[i])
				hold, _ := backendtest.Granted(t, b, redistest.Request(key))
				require.NoError(t, b.Release(t.Context(), hold))
				select {
				case <-watches[i]:
					return true
				case <-time.After(100 * time.Millisecond):
					return false
				}
			})
		}
	}
}

// What was published while the connection was down cannot be known, so its
// return is a signal too.
func TestReturnOfTheSubscriptionIsASignal(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, servertest.WithControl())
	c := goredis.NewClient(&goredis.Options{Addr: server.Addr(), DialerRetries: 1})
	t.Cleanup(func() { _ = c.Close() })
	b := backendOn(t, c)
	key := backendtest.UniqueKey(t)
	w, err := b.Watch(t.Context(), key)
	require.NoError(t, err)
	server.Kill(t)
	signalled(t, w)
	drain(w)
	server.Restart(t, false)
	signalled(t, w)
	backendtest.Eventually(t, "the subscription is back", func() bool {
		return c.PubSubNumSub(t.Context(), namesOf(defaultPrefix, key).record()).Val()[namesOf(defaultPrefix, key).record()] == 1
	})
}

// A connection on which nothing arrives any more looks like one on which nobody
// releases anything.
func TestSilentConnectionIsGivenUp(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, servertest.WithControl())
	c := goredis.NewClient(&goredis.Options{Addr: server.Addr(), ReadTimeout: time.Second, DialerRetries: 1})
	t.Cleanup(func() { _ = c.Close() })
	b := backendOn(t, c)
	const dead = 2 * time.Second
	b.hub.Times = push.Times{
		Answer: time.Minute, Tick: 20 * time.Millisecond, Linger: time.Minute, Idle: time.Minute,
		Ping: 50 * time.Millisecond, Dead: dead, Retry: 200 * time.Millisecond,
	}
	key := backendtest.UniqueKey(t)
	w, err := b.Watch(t.Context(), key)
	require.NoError(t, err)
	select {
	case <-w:
		require.Fail(t, "a quiet connection that answers is kept")
	case <-time.After(dead + dead/4):
	}
	server.Freeze(t)
	signalled(t, w)
	_, err = b.Watch(t.Context(), backendtest.UniqueKey(t))
	require.Error(t, err)
	drain(w)
	server.Resume(t)
	signalled(t, w)
	drain(w)
	hold, _ := backendtest.Granted(t, b, redistest.Request(key))
	require.NoError(t, b.Release(t.Context(), hold))
	signalled(t, w)
}

func TestWatchChurn(t *testing.T) {
	t.Parallel()
	c := redistest.Client(t, servertest.Redis(t))
	b := backendOn(t, c)
	names := []string{backendtest.UniqueKey(t), backendtest.UniqueKey(t), backendtest.UniqueKey(t)}
	var wg sync.WaitGroup
	b.hub.Times.Answer = time.Minute // nothing here depends on when it comes
	for i := range 8 {
		wg.Go(func() {
			for j := range 60 {
				ctx, cancel := context.WithCancel(context.Background())
				key := names[(i+j)%len(names)]
				w, err := b.Watch(ctx, key)
				if err != nil {
					t.Errorf("watch: %v", err)
					cancel()
					return
				}
				c.Publish(ctx, namesOf(defaultPrefix, key).record(), "1")
				signalled(t, w)
				if j%20 == 0 {
					c.ClientKillByFilter(ctx, "TYPE", "pubsub")
				}
				cancel()
			}
		})
	}
	wg.Wait()
	for _, key := range names {
		w, err := b.Watch(t.Context(), key)
		require.NoError(t, err)
		drain(w)
		hold, _ := backendtest.Granted(t, b, redistest.Request(key))
		require.NoError(t, b.Release(t.Context(), hold))
		signalled(t, w)
	}
}

func TestCloseEndsWatchesAndLeavesNothing(t *testing.T) {
	server := servertest.Redis(t)
	before := goleak.IgnoreCurrent()
	c := goredis.NewClient(&goredis.Options{Addr: server.Addr()})
	b, err := NewBackend(t.Context(), c, nil)
	require.NoError(t, err)
	w, err := b.(backend.Watcher).Watch(t.Context(), "k")
	require.NoError(t, err)
	require.NoError(t, b.Close())
	_, open := <-w
	require.False(t, open)
	require.NoError(t, b.Close())
	_, err = b.(backend.Watcher).Watch(t.Context(), "k")
	require.ErrorIs(t, err, backend.ErrClosed)
	require.NoError(t, c.Ping(t.Context()).Err(), "the caller's client is not closed")
	require.NoError(t, c.Close())
	require.NoError(t, goleak.Find(before))
}

func TestCloseWhileTheServerHangs(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, servertest.WithControl())
	c := goredis.NewClient(&goredis.Options{Addr: server.Addr(), ReadTimeout: time.Minute})
	b, err := NewBackend(t.Context(), c, nil)
	require.NoError(t, err)
	_, err = b.(backend.Watcher).Watch(t.Context(), "k")
	require.NoError(t, err)
	server.Freeze(t)
	require.NoError(t, c.Close())
	start := time.Now()
	require.NoError(t, b.Close())
	require.Less(t, time.Since(start), 30*time.Second, "it does not wait for an answer")
	server.Resume(t)
}

// A user that may not subscribe is asked for it now and then, not by every waiter, and
// the log says it once.
func TestForbiddenWatchesAreFew(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	admin := redistest.Client(t, server)
	require.NoError(t, admin.Do(t.Context(), "acl", "setuser", "mute", "on", ">pass", "~*", "resetchannels", "+@all").Err())
	c := goredis.NewClient(&goredis.Options{Addr: server.Addr(), Username: "mute", Password: "pass"})
	t.Cleanup(func() { _ = c.Close() })
	var log bytes.Buffer // written to by one goroutine, and read when it has ended
	nb, err := NewBackend(t.Context(), c, &Options{Lock: lock.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}})
	require.NoError(t, err)
	b := nb.(*redisBackend)
	b.hub.Times.Forbid = time.Hour
	connections := func() (n int) {
		n, err := strconv.Atoi(wire.InfoFields(admin.Info(t.Context(), "stats").Val())["total_connections_received"])
		require.NoError(t, err)
		return n
	}
	before := connections()
	for i := range 50 {
		_, err := b.Watch(t.Context(), "k"+strconv.Itoa(i))
		require.ErrorIs(t, err, backend.ErrPermanent)
	}
	require.Less(t, connections()-before, 20, "for 50 watches")

	// Once it is permitted, and the time has come, watches work again.
	require.NoError(t, admin.Do(t.Context(), "acl", "setuser", "mute", "allchannels").Err())
	backendtest.Eventually(t, "watches work again", func() bool {
		_, err = b.Watch(t.Context(), "one")
		return err == nil
	})
	_, err = b.Watch(t.Context(), "two")
	require.NoError(t, err)
	require.NoError(t, b.Close())
	require.Equal(t, 1, strings.Count(log.String(), "may not subscribe"), log.String())
}
