package redlock

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

func watching(t testing.TB, b backend.Backend, key string) <-chan backend.Hint {
	t.Helper()
	w, err := b.(backend.Watcher).Watch(t.Context(), key)
	require.NoError(t, err)
	return w
}

// hinted waits for a hint.
func hinted(t testing.TB, w <-chan backend.Hint) backend.Hint {
	t.Helper()
	select {
	case h, ok := <-w:
		require.True(t, ok, "the watch broke")
		return h
	case <-time.After(time.Minute):
		require.Fail(t, "no hint")
	}
	return backend.Hint{}
}

// everywhere waits until so many clients listen to the key at each of the nodes.
func everywhere(t testing.TB, servers []*servertest.Server, key string, n int64) {
	t.Helper()
	for _, s := range servers {
		c, channel := redistest.Client(t, s), defaultPrefix+"k:"+key
		backendtest.Eventually(t, "the node is listened to", func() bool {
			return c.PubSubNumSub(t.Context(), channel).Val()[channel] == n
		})
	}
}

func patient() *Options { return unhurried(Options{Lock: lock.Options{TTL: 15 * time.Second}}) }

func TestWatchHearsReleases(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 3)
	b, other := backendOn(t, servers, patient()), backendOn(t, servers, patient())
	w, second := watching(t, b, "k"), watching(t, other, "k")
	silent := watching(t, b, "quiet")
	everywhere(t, servers, "k", 2)
	for range 20 {
		hold, _ := backendtest.Granted(t, other, redistest.Request("k"))
		others, err := other.(backend.ReleaseTeller).ReleaseTelling(t.Context(), hold)
		require.NoError(t, err)
		require.Equal(t, 1, others, "the client does not count itself")
		require.Equal(t, 2, hinted(t, w).Watchers)
		require.Equal(t, 2, hinted(t, second).Watchers)
	}
	_, g := backendtest.Granted(t, other, redistest.Request("k"))
	require.NoError(t, other.(backend.ForceReleaser).ForceRelease(t.Context(), "k", g.Token))
	hinted(t, w)
	select {
	case <-silent:
		require.Fail(t, "a hint for another key")
	default:
	}
}

// Of a crowd some are told of each release, the same ones by all nodes, and in time everybody is.
func TestReleaseTellsSomeOfACrowd(t *testing.T) {
	t.Parallel()
	const n = 70
	servers := nodeSet(t, 3)
	watches := make([]<-chan backend.Hint, n)
	for i := range watches {
		watches[i] = watching(t, backendOn(t, servers, patient()), "k")
	}
	everywhere(t, servers, "k", n)
	b := backendOn(t, servers, patient())
	told := make([]bool, n)
	for release := 0; slices.Contains(told, false); release++ {
		require.Less(t, release, 1000, "some are never told")
		hold, _ := backendtest.Granted(t, b, redistest.Request("k"))
		others, err := b.(backend.ReleaseTeller).ReleaseTelling(t.Context(), hold)
		require.NoError(t, err)
		require.Equal(t, n, others)
		heard, have := 0, 0
		backendtest.Eventually(t, "as many hear of the release as each of them was told", func() bool {
			for i, w := range watches {
				select {
				case hint, ok := <-w:
					require.True(t, ok, "a watch broke")
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

// TestWatchHasOneHintForEachEnd: the nodes tell of an end one after the other, and those
// behind the majority give no second hint.
func TestWatchHasOneHintForEachEnd(t *testing.T) {
	t.Parallel()
	w := &watch{quorum: 3, nodes: 5, hints: make(chan backend.Hint, 1), confirmed: make(chan error, 1)}
	for i := range w.nodes {
		w.ears[i] = ear{w: w, node: i, channels: 1}
		w.ears[i].Subscribed()
	}
	require.NoError(t, <-w.confirmed)
	hints := func() int { return len(w.hints) }
	tell := func(name string, nodes ...int) {
		for _, i := range nodes {
			w.ears[i].Message(name + "|7")
		}
	}
	tell("a", 0, 1)
	tell("b", 2, 3)
	require.Zero(t, hints(), "two nodes of five each")
	tell("b", 4)
	require.Equal(t, 7, (<-w.hints).Watchers)
	tell("b", 0, 1)
	require.Zero(t, hints(), "it was told already")
	tell("a", 2)
	require.Equal(t, 7, (<-w.hints).Watchers)
	tell("b", 0, 1)
	require.Zero(t, hints(), "the same acquisition held it again, on two nodes")
	tell("b", 2)
	require.Equal(t, 7, (<-w.hints).Watchers)
	for _, text := range []string{"", "|1", "c", "c|x"} {
		for i := range w.nodes {
			w.ears[i].Message(text)
		}
	}
	require.Zero(t, hints(), "nobody of ours has told that")

	w.ears[0].Broken()
	w.ears[0].Subscribed()
	require.Zero(t, hints(), "nothing is left open")
	tell("d", 1, 2)
	w.ears[0].Broken()
	require.Equal(t, backend.Hint{}, <-w.hints, "what the node told is not known")
	w.ears[1].End(errUnheard)
	require.False(t, w.broken)
	w.ears[2].Unreachable(errUnheard)
	_, open := <-w.hints
	require.False(t, open, "no majority is heard")
	tell("e", 0, 1, 2, 3, 4)
}

// TestWatchWithNodesDown: as many nodes as may be are down, some of them from the start and
// some only once the watch is there.
func TestWatchWithNodesDown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ nodes, before, after int }{{3, 1, 0}, {3, 0, 1}, {5, 1, 1}} {
		servers := nodeSet(t, c.nodes)
		opts := patient()
		b, other := backendOn(t, servers, opts), backendOn(t, servers, opts)
		for _, s := range servers[:c.before] {
			s.Kill(t)
		}
		w := watching(t, b, "k")
		hold, _ := backendtest.Granted(t, other, redistest.Request("k"))
		everywhere(t, servers[c.before:], "k", 1)
		for _, s := range servers[c.before : c.before+c.after] {
			s.Kill(t)
		}
		require.NoError(t, other.Release(t.Context(), hold))
		hinted(t, w)
		// One more, and no majority can be heard.
		servers[c.nodes-1].Kill(t)
		backendtest.Eventually(t, "the watch breaks", func() bool {
			select {
			case _, ok := <-w:
				return !ok
			default:
				return false
			}
		})
		_, err := b.(backend.Watcher).Watch(t.Context(), "k")
		require.ErrorIs(t, err, backend.ErrUnavailable)
		for _, s := range servers {
			s.Kill(t)
		}
	}
}

// TestWatchWithANodeThatHangs: a node that stands still holds up neither the beginning of a
// watch nor its hints, nor the end.
func TestWatchWithANodeThatHangs(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 3)
	clients := clientsOf(t, servers)
	for i, s := range servers {
		clients[i] = goredis.NewClient(&goredis.Options{Addr: s.Addr(), ReadTimeout: time.Hour, DialTimeout: time.Hour})
		t.Cleanup(func() { _ = clients[i].Close() })
	}
	b, err := NewBackend(t.Context(), clients, patient())
	require.NoError(t, err)
	other := backendOn(t, servers, patient())
	before := watching(t, b, "before")
	everywhere(t, servers, "before", 1)
	servers[1].Freeze(t)
	for key, w := range map[string]<-chan backend.Hint{"before": before, "after": watching(t, b, "after")} {
		hold, _ := backendtest.Granted(t, other, redistest.Request(key))
		require.NoError(t, other.Release(t.Context(), hold))
		hinted(t, w)
	}
	start := time.Now()
	require.NoError(t, b.Close())
	require.Less(t, time.Since(start), time.Minute)
	_, open := <-before
	require.False(t, open)
	servers[1].Resume(t)
}

// TestUserWithoutChannels: waiters of a user who may neither subscribe nor publish get the
// key all the same, and the log says so, once.
func TestUserWithoutChannels(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 3)
	var clients []goredis.UniversalClient
	for _, s := range servers {
		admin := redistest.Client(t, s)
		require.NoError(t, admin.Do(t.Context(), "acl", "setuser", "mute", "on", ">pass", "~*", "resetchannels", "+@all").Err())
		c := goredis.NewClient(&goredis.Options{Addr: s.Addr(), Username: "mute", Password: "pass"})
		t.Cleanup(func() { _ = c.Close() })
		clients = append(clients, c)
	}
	var log lines
	opts := patient()
	opts.Lock.Logger = slog.New(slog.NewTextHandler(&log, nil))
	b, err := NewBackend(t.Context(), clients, opts)
	require.NoError(t, err)
	_, err = b.(backend.Watcher).Watch(t.Context(), "k")
	require.ErrorIs(t, err, backend.ErrPermanent)
	l, err := lock.New(b, &opts.Lock)
	require.NoError(t, err)
	lease, err := l.Acquire(t.Context(), "k")
	require.NoError(t, err)
	other, err := New(t.Context(), clientsOf(t, servers), opts)
	require.NoError(t, err)
	got := make(chan error, 1)
	go func() {
		next, err := other.Acquire(t.Context(), "k")
		if err == nil {
			err = next.Release(t.Context())
		}
		got <- err
	}()
	everywhere(t, servers, "k", 1)
	require.NoError(t, lease.Release(t.Context()))
	require.NoError(t, <-got)
	require.NoError(t, l.Close())
	require.NoError(t, other.Close())
	require.Equal(t, 1, strings.Count(log.String(), "may not subscribe"), log.String())
	require.Equal(t, 1, strings.Count(log.String(), "may not publish"), log.String())
}

// lines is a log that several goroutines write.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestCommandsPerGrantOfACrowd: what a grant costs does not grow with those who wait.
func TestCommandsPerGrantOfACrowd(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 3)
	const clients, turns = 40, 5
	all := make([]lock.Locker, clients)
	for i := range all {
		l, err := New(t.Context(), clientsOf(t, servers), patient())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		all[i] = l
	}
	lease, err := all[0].Acquire(t.Context(), "k")
	require.NoError(t, err)
	var served sync.WaitGroup
	for _, l := range all {
		served.Go(func() {
			for range turns {
				got, err := l.Acquire(t.Context(), "k")
				if !assert.NoError(t, err) {
					return
				}
				assert.NoError(t, got.Release(t.Context()))
			}
		})
	}
	everywhere(t, servers, "k", clients)
	before, start := scripts(t, servers), time.Now()
	require.NoError(t, lease.Release(t.Context()))
	served.Wait()
	calls := scripts(t, servers) - before
	t.Logf("%.1f scripts per grant", float64(calls)/(clients*turns))
	// Under a watch a Locker asks every two seconds all the same.
	polls := len(servers) * clients * (1 + int(time.Since(start)/(2*time.Second)))
	require.LessOrEqual(t, calls, 60*clients*turns+polls)
}

// scripts is how many scripts the nodes have been sent.
func scripts(t *testing.T, servers []*servertest.Server) (n int) {
	t.Helper()
	for _, s := range servers {
		n += redistest.ScriptCalls(t, redistest.Client(t, s))
	}
	return n
}
