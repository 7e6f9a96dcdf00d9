package redlock

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
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
	"github.com/mortiselock/lock/redis/internal/wire"
)

// askedAnew opens a Redlock of its own, as each run of a program does, and returns the
// error of a request and what the opening warned of.
func askedAnew(t *testing.T, servers []*servertest.Server, opts Options, req backend.Request) (warnings string, err error) {
	t.Helper()
	var log bytes.Buffer
	opts.Lock.Logger = slog.New(slog.NewTextHandler(&log, nil))
	for range 5 {
		if err = asked(t, servers, opts, req); !errors.Is(err, backend.ErrOutcomeUnknown) {
			break
		}
		t.Logf("nodes answered late, which says nothing of the lock: the request is sent once more: %v", err)
	}
	return log.String(), err
}

// asked is the outcome of a request to a backend of its own.
func asked(t *testing.T, servers []*servertest.Server, opts Options, req backend.Request) error {
	t.Helper()
	clients := clientsOf(t, servers)
	b, err := NewBackend(t.Context(), clients, unhurried(opts))
	require.NoError(t, err)
	_, err = b.Try(t.Context(), req)
	require.NoError(t, b.Close())
	for _, c := range clients {
		_ = c.Close()
	}
	return err
}

// inTime runs a test with a TTL, and with a longer one where the lease was over before
// anything could be seen.
func inTime(t *testing.T, ttl time.Duration, test func(ttl time.Duration) (seen bool)) {
	t.Helper()
	for _, ttl := range []time.Duration{ttl, 15 * time.Second} {
		if test(ttl) {
			return
		}
		t.Logf("the nodes were away for longer than a lease of %s", ttl)
	}
	t.Skip("inconclusive: the machine is too slow to restart nodes while a lease lasts")
}

// keepsOut requires that no new client gets the key before the grant has ended, and
// that one does afterwards. It reports whether one has asked in time.
func keepsOut(t *testing.T, servers []*servertest.Server, opts Options, key string, g backend.Grant) bool {
	t.Helper()
	asked := 0
	for {
		warnings, err := askedAnew(t, servers, opts, redistest.Brief(key, opts.Lock.TTL))
		if backend.SystemClock().Now() >= g.Until() {
			break
		}
		require.ErrorIs(t, err, backend.ErrUnavailable, "nodes that had lost their data let a rival in before the holder's deadline")
		require.ErrorContains(t, err, "is new, or has lost its data, and takes no part for another")
		require.Contains(t, warnings, "grant nothing for up to another")
		asked++
		time.Sleep(200 * time.Millisecond)
	}
	backendtest.Eventually(t, "the nodes vote again", func() bool {
		_, err := askedAnew(t, servers, opts, redistest.Brief(key, opts.Lock.TTL))
		return err == nil
	})
	return asked > 0
}

func flush(t *testing.T, servers ...*servertest.Server) {
	t.Helper()
	for _, s := range servers {
		require.NoError(t, redistest.Client(t, s).FlushAll(t.Context()).Err())
	}
}

// upFor waits until the server has been up for so many seconds.
func upFor(t *testing.T, s *servertest.Server, seconds int) {
	t.Helper()
	c := redistest.Client(t, s)
	backendtest.Eventually(t, "it has been up for long", func() bool {
		info, err := c.Info(t.Context(), "server").Result()
		if err != nil {
			return false
		}
		up, err := strconv.Atoi(wire.InfoFields(info)["uptime_in_seconds"])
		return err == nil && up >= seconds
	})
}

// TestLostByAMajority: nodes that have lost their data grant nothing while a
// lease runs that they may have voted for, also when all who meet them are new
// clients, and also if those say that the nodes are new.
func TestLostByAMajority(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, s []*servertest.Server){
		"restarted empty": func(t *testing.T, s []*servertest.Server) {
			s[2].Restart(t, false)
			s[1].Restart(t, false)
		},
		"flushed": func(t *testing.T, s []*servertest.Server) {
			s[2].Restart(t, false)
			flush(t, s[1], s[2])
		},
	} {
		for _, newNodes := range []bool{false, true} {
			t.Run(name+", new_nodes="+strconv.FormatBool(newNodes), func(t *testing.T) {
				t.Parallel()
				inTime(t, 6*time.Second, func(ttl time.Duration) bool {
					servers := nodeSet(t, 3)
					opts := Options{NewNodes: newNodes, Lock: lock.Options{TTL: ttl}}
					b, err := NewBackend(t.Context(), clientsOf(t, servers), unhurried(opts))
					require.NoError(t, err)
					servers[2].Kill(t) // the lease is on two nodes of three
					_, g := backendtest.Granted(t, b, redistest.Brief("k", ttl))
					require.NoError(t, b.Close()) // nobody is there who knew the nodes before
					lose(t, servers)
					return keepsOut(t, servers, opts, "k", g)
				})
			})
		}
	}
}

// TestNodesRememberTheLongestTTL: the node that lost its data may have voted for
// the lease of another Locker, with a longer TTL than that of the one that asks now.
func TestNodesRememberTheLongestTTL(t *testing.T) {
	t.Parallel()
	long := Options{NewNodes: true, Lock: lock.Options{TTL: 9 * time.Second}}
	short := Options{Lock: lock.Options{TTL: 3 * time.Second}}

	t.Run("opened after", func(t *testing.T) {
		t.Parallel()
		servers := nodeSet(t, 3)
		_, err := askedAnew(t, servers, Options{NewNodes: true, Lock: short.Lock}, redistest.Brief("other", short.Lock.TTL))
		require.NoError(t, err)
		servers[2].Kill(t) // the lease is on two nodes of three
		warnings, err := askedAnew(t, servers, long, redistest.Brief("another", long.Lock.TTL))
		require.NoError(t, err)
		require.Contains(t, warnings, "restart_delay=9s")
		b, err := NewBackend(t.Context(), clientsOf(t, servers), unhurried(long))
		require.NoError(t, err)
		_, g := backendtest.Granted(t, b, redistest.Brief("k", long.Lock.TTL))
		require.NoError(t, b.Close())
		servers[1].Restart(t, false)
		servers[2].Restart(t, false)
		if !keepsOut(t, servers, short, "k", g) {
			t.Skip("inconclusive: the machine is too slow to restart nodes while a lease lasts")
		}
		warnings, err = askedAnew(t, servers, long, redistest.Brief("yet another", long.Lock.TTL))
		require.NoError(t, err)
		require.NotContains(t, warnings, "restart_delay=9s", "the nodes know")
	})
	t.Run("open before", func(t *testing.T) {
		t.Parallel()
		servers := nodeSet(t, 3)
		b := backendOn(t, servers, unhurried(long))
		hold, g := backendtest.Granted(t, b, redistest.Brief("k", long.Lock.TTL))
		rival := backendOn(t, servers, unhurried(short))
		flush(t, servers[1], servers[2])
		for backend.SystemClock().Now() < g.Until() {
			_, err := rival.Try(t.Context(), redistest.Brief("k", short.Lock.TTL))
			if backend.SystemClock().Now() < g.Until() {
				require.ErrorIs(t, err, backend.ErrUnavailable)
			}
			time.Sleep(100 * time.Millisecond)
		}
		_ = b.Release(t.Context(), hold)
	})
	t.Run("restarted under the longer lease", func(t *testing.T) {
		t.Parallel()
		servers := nodeSet(t, 3)
		b := backendOn(t, servers, unhurried(long))
		hold, _ := backendtest.Granted(t, b, redistest.Brief("k", long.Lock.TTL))
		servers[1].Restart(t, false)
		restarted := redistest.Client(t, servers[1])
		backendtest.Eventually(t, "the node is told how long it has to wait", func() bool {
			_, _ = b.Renew(t.Context(), hold)
			mark, err := restarted.Get(t.Context(), defaultPrefix+"node").Result()
			return err == nil && strings.HasSuffix(mark, "|9000")
		})
	})
}

// TestLostByAll: when every node has lost its data nothing tells the set from a
// new one but that the nodes have only just started, or were flushed.
func TestLostByAll(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, s *servertest.Server){
		"restarted empty": func(t *testing.T, s *servertest.Server) { s.Restart(t, false) },
		"flushed":         func(t *testing.T, s *servertest.Server) { flush(t, s) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inTime(t, 5*time.Second, func(ttl time.Duration) bool {
				servers := nodeSet(t, 3)
				opts := Options{Lock: lock.Options{TTL: ttl}}
				for _, s := range servers {
					upFor(t, s, int(ttl/time.Second)+2) // so that a flush does not show in the uptime
				}
				b := backendOn(t, servers, unhurried(opts))
				_, g := backendtest.Granted(t, b, redistest.Brief("k", ttl))
				require.NoError(t, b.Close())
				var lost sync.WaitGroup
				for _, s := range servers {
					lost.Go(func() { lose(t, s) })
				}
				lost.Wait()
				return keepsOut(t, servers, opts, "k", g)
			})
		})
	}
}

// TestLostByOne: one node that was flushed does not vote, and the others go on.
func TestLostByOne(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 3)
	opts := Options{RestartDelay: time.Minute}
	flush(t, servers[0])
	warnings, err := askedAnew(t, servers, opts, redistest.Request("k"))
	require.NoError(t, err)
	require.Contains(t, warnings, servers[0].Addr())
	require.NotContains(t, warnings, "new_nodes", "the set is in use")
	servers[2].Kill(t)
	_, err = askedAnew(t, servers, opts, redistest.Request("other"))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, servers[0].Addr()+": is new, or has lost its data")
}

// TestReplacedNode: a server that takes the place of another one votes when the
// restart delay has passed.
func TestReplacedNode(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 3)
	opts := Options{Lock: lock.Options{TTL: 5 * time.Second}}
	b := backendOn(t, servers, unhurried(opts))
	servers[0].Kill(t)
	_, g := backendtest.Granted(t, b, redistest.Brief("k", opts.Lock.TTL))
	servers[0] = freshSet(t, 1)[0]
	servers[1].Kill(t)
	// The new node and the one that stays are a majority.
	_, err := askedAnew(t, servers, opts, redistest.Brief("other", opts.Lock.TTL))
	if backend.SystemClock().Now() < g.Until() {
		require.ErrorIs(t, err, backend.ErrUnavailable)
	}
	backendtest.Eventually(t, "it votes", func() bool {
		_, err := askedAnew(t, servers, opts, redistest.Brief("other", opts.Lock.TTL))
		return err == nil
	})
}

// TestFirstInstallation: servers that nobody has used grant at once if they
// have been up for the restart delay or are said to be new, and otherwise once it has
// passed, which the log and the error say.
func TestFirstInstallation(t *testing.T) {
	t.Parallel()
	opts := Options{Lock: lock.Options{TTL: 3 * time.Second}}
	t.Run("just started", func(t *testing.T) {
		t.Parallel()
		servers := freshSet(t, 3)
		slow := opts
		slow.RestartDelay = 8 * time.Second
		warnings, err := askedAnew(t, servers, slow, redistest.Brief("k", opts.Lock.TTL))
		require.ErrorIs(t, err, backend.ErrUnavailable)
		require.ErrorContains(t, err, "is new, or has lost its data, and takes no part for another")
		require.Contains(t, warnings, "these nodes are new, or have lost their data")
		require.Contains(t, warnings, "new_nodes=true")
		backendtest.Eventually(t, "they grant when the delay has passed", func() bool {
			_, err := askedAnew(t, servers, opts, redistest.Brief("k", opts.Lock.TTL))
			return err == nil
		})
	})
	t.Run("up for longer than the delay", func(t *testing.T) {
		t.Parallel()
		servers := freshSet(t, 3)
		for _, s := range servers {
			upFor(t, s, 5)
		}
		warnings, err := askedAnew(t, servers, opts, redistest.Brief("k", opts.Lock.TTL))
		require.NoError(t, err)
		require.NotContains(t, warnings, "lost their data")
	})
	t.Run("one out of reach", func(t *testing.T) {
		t.Parallel()
		servers := freshSet(t, 3)
		for _, s := range servers {
			upFor(t, s, 5)
		}
		servers[2].Kill(t) // it may have a mark
		slow := opts
		slow.RestartDelay = time.Minute
		_, err := askedAnew(t, servers, slow, redistest.Brief("k", opts.Lock.TTL))
		require.ErrorIs(t, err, backend.ErrUnavailable)
		slow.NewNodes = true
		warnings, err := askedAnew(t, servers, slow, redistest.Brief("k", opts.Lock.TTL))
		require.NoError(t, err)
		require.NotContains(t, warnings, "lost their data")
	})
	t.Run("said to be new by many at once", func(t *testing.T) {
		t.Parallel()
		servers := freshSet(t, 3)
		first := Options{NewNodes: true, RestartDelay: time.Minute}
		var all sync.WaitGroup
		for range 8 {
			clients := clientsOf(t, servers)
			all.Go(func() {
				b, err := NewBackend(t.Context(), clients, unhurried(first))
				if !assert.NoError(t, err) {
					return
				}
				_, err = b.Try(t.Context(), redistest.Request(backendtest.UniqueKey(t)))
				assert.NoError(t, err)
				assert.NoError(t, b.Close())
			})
		}
		all.Wait()
	})
}

// TestLongTTL: a node that has lost its data grants nothing for the restart delay
// and no longer, so no lease may last longer than that, however its TTL was given.
func TestLongTTL(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 3)
	opts := Options{Lock: lock.Options{TTL: 6 * time.Second}}
	refused := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, lock.ErrInvalid)
		require.ErrorContains(t, err, "raise restart_delay (RestartDelay)")
	}
	l, err := New(t.Context(), clientsOf(t, servers), unhurried(opts))
	require.NoError(t, err)
	defer l.Close()
	_, err = l.TryAcquire(t.Context(), "k", lock.WithTTL(opts.Lock.TTL+time.Millisecond))
	refused(err)
	lease, err := l.TryAcquire(t.Context(), "k", lock.WithTTL(opts.Lock.TTL))
	require.NoError(t, err)
	require.NoError(t, lease.Release(t.Context()))

	b := backendOn(t, servers, &opts)
	_, err = lock.New(b, &lock.Options{TTL: time.Minute})
	refused(err)

	opts.RestartDelay = time.Minute
	longer, err := New(t.Context(), clientsOf(t, servers), unhurried(opts))
	require.NoError(t, err)
	defer longer.Close()
	lease, err = longer.TryAcquire(t.Context(), "k", lock.WithTTL(time.Minute))
	require.NoError(t, err)
	require.NoError(t, lease.Release(t.Context()))
	_, err = longer.TryAcquire(t.Context(), "k", lock.WithTTL(time.Minute+time.Millisecond))
	refused(err)
}

// TestALongerDelayCostsNobody: nodes whose data is complete go on granting when a
// Locker comes with a longer restart delay. What they lose from then on they wait for.
func TestALongerDelayCostsNobody(t *testing.T) {
	t.Parallel()
	servers := freshSet(t, 3)
	for _, s := range servers {
		upFor(t, s, 5)
	}
	short := Options{Lock: lock.Options{TTL: 3 * time.Second}}
	long := Options{RestartDelay: time.Hour, Lock: short.Lock}
	_, err := askedAnew(t, servers, short, redistest.Brief("k", short.Lock.TTL))
	require.NoError(t, err)
	for _, opts := range []Options{long, short, long} {
		warnings, err := askedAnew(t, servers, opts, redistest.Brief(backendtest.UniqueKey(t), short.Lock.TTL))
		require.NoError(t, err)
		require.NotContains(t, warnings, "lost their data")
	}
	flush(t, servers[0], servers[1])
	_, err = askedAnew(t, servers, short, redistest.Brief("other", short.Lock.TTL))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.Regexp(t, "takes no part for another (59m|1h0m0s)", err.Error(), "the long delay, less the time since")
}

// lostVote has the key granted by nodes of which the first forgets it when it is
// restarted with what it saved before. The second is down meanwhile.
func lostVote(t *testing.T, servers []*servertest.Server, holder backend.Backend, ttl time.Duration) backend.Grant {
	t.Helper()
	for _, s := range servers {
		require.NoError(t, redistest.Client(t, s).Save(t.Context()).Err())
	}
	servers[1].Kill(t)
	_, g := backendtest.Granted(t, holder, redistest.Brief("k", ttl))
	n := holder.(majorityWithTokens).nodes[1]
	backendtest.Eventually(t, "the request to the second has ended", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return !n.busy
	})
	return g
}

// outlasts requires that nobody else gets the key before the grant ends.
func outlasts(t *testing.T, g backend.Grant, rival backend.Backend) {
	t.Helper()
	for backend.SystemClock().Now() < g.Until() {
		_, err := rival.Try(t.Context(), redistest.Brief("k", time.Second))
		if backend.SystemClock().Now() < g.Until() {
			require.Error(t, err, "a second holder")
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// TestNeighbourHidesNoRestart: those who have other keys on the nodes, and meet
// them first after a restart, teach them no script by which the restart goes unnoticed.
func TestNeighbourHidesNoRestart(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]func(*goredis.Options, *Options){
		"another prefix":   func(_ *goredis.Options, o *Options) { o.Prefix = "other:" },
		"another database": func(c *goredis.Options, _ *Options) { c.DB = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := nodeSet(t, 3)
			const ttl = 6 * time.Second
			opts := unhurried(Options{Lock: lock.Options{TTL: ttl}})
			holder, rival := backendOn(t, servers, opts), backendOn(t, servers, opts)
			others := &Options{NewNodes: true, Lock: lock.Options{TTL: time.Second}}
			var clients []goredis.UniversalClient
			for _, s := range servers {
				c := &goredis.Options{Addr: s.Addr()}
				of(c, others)
				client := goredis.NewClient(c)
				t.Cleanup(func() { _ = client.Close() })
				clients = append(clients, client)
			}
			neighbour, err := NewBackend(t.Context(), clients, others)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, neighbour.Close()) })
			g := lostVote(t, servers, holder, ttl)
			servers[0].Restart(t, true) // has forgotten its vote
			servers[1].Restart(t, true)
			for until := time.Now().Add(2 * time.Second); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
				_, _ = neighbour.Try(t.Context(), redistest.Brief(backendtest.UniqueKey(t), time.Second))
			}
			outlasts(t, g, rival)
		})
	}
}

// atMark runs once behind the script that notices a restart.
type atMark struct {
	armed atomic.Bool
	do    func()
	fail  error // of the script, from then on
}

func (h *atMark) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (h *atMark) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		if args := cmd.Args(); args[0] != "eval" || args[1] != markScript.Text || !h.armed.Load() {
			return next(ctx, cmd)
		}
		if h.fail != nil {
			cmd.SetErr(h.fail)
			return h.fail
		}
		err := next(ctx, cmd)
		if h.armed.Swap(false) {
			h.do()
		}
		return err
	}
}

func (h *atMark) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return next
}

// TestRestartBehindTheMark: a node that is restarted between the mark and the
// scripts as text is met again, with a new mark.
func TestRestartBehindTheMark(t *testing.T) {
	t.Parallel()
	servers := freshSet(t, 3)
	servers[1] = servertest.Redis(t, servertest.WithPersistence()) // it votes at once
	firstUse(t, servers)
	const ttl = 6 * time.Second
	opts := unhurried(Options{Lock: lock.Options{TTL: ttl}})
	holder, rival := backendOn(t, servers, opts), backendOn(t, servers, opts)
	hook := &atMark{do: func() { servers[0].Restart(t, true) }}
	nodeServer(rival, 0).client.AddHook(hook)
	g := lostVote(t, servers, holder, ttl)
	require.NoError(t, redistest.Client(t, servers[0]).ScriptFlush(t.Context()).Err())
	servers[1].Restart(t, true)
	hook.armed.Store(true)
	outlasts(t, g, rival)
	require.False(t, hook.armed.Load(), "it was restarted there")
}

func nodeServer(b backend.Backend, node int) redisServer {
	return b.(majorityWithTokens).nodes[node].server.(redisServer)
}

// TestDoneBehindAnUnknownScript: what a node has carried out behind a script that it
// did not know is not denied when the node is gone before the scripts are sent as text.
func TestDoneBehindAnUnknownScript(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 1)
	b := backendOn(t, servers, unhurried(Options{Lock: lock.Options{TTL: ttl}}))
	hold, _ := backendtest.Granted(t, b, redistest.Request("k")) // the script for grants is known now, and that for renewals is not
	r, s := b.(majorityWithTokens), nodeServer(b, 0)
	hook := &atMark{fail: &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}}
	hook.armed.Store(true)
	s.client.AddHook(hook)
	renewal := &call{script: renewScript, args: []any{"evalsha", renewScript.Hash, 2, r.record("k"), r.mark, hold.ID.Hex(), 1000}}
	grant := &call{script: r.grant, args: []any{
		"evalsha", r.grant.Hash, 4, r.record("other"), r.accepted("other"), r.mark, r.floor(), "R1|" + backend.NewID().Hex() + "|1|1|{}", 60000, 1000, 0, 86400000,
	}}
	s.do(t.Context(), []*call{renewal, grant})
	require.ErrorIs(t, wire.Sentinel(renewal.err), backend.ErrUnavailable)
	require.NotEmpty(t, redistest.Client(t, servers[0]).Get(t.Context(), r.record("other")).Val())
	require.NoError(t, grant.err)
	require.Equal(t, yes, r.meansGrant(grant))
}

// loses drops the answer to the second command of a pipeline of scripts by their hashes.
type loses struct{ atMark }

func (h *loses) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		err := next(ctx, cmds)
		if cmds[0].Name() == "evalsha" {
			err = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
			cmds[1].SetErr(err)
		}
		return err
	}
}

// TestRefusedBehindAnUnknownScript: a request that lost its answer behind a script
// that the node did not know may arrive after its repeat, so that the refusal of that is
// none: what it is granted late is given back.
func TestRefusedBehindAnUnknownScript(t *testing.T) {
	t.Parallel()
	b := backendOn(t, nodeSet(t, 1), unhurried(Options{Lock: lock.Options{TTL: ttl}}))
	backendtest.Granted(t, b, redistest.Request("k")) // the script for grants is known now, and that for renewals is not
	r, s := b.(majorityWithTokens), nodeServer(b, 0)
	s.client.AddHook(&loses{})
	renewal := &call{script: renewScript, args: []any{
		"evalsha", renewScript.Hash, 3, r.record("other"), r.mark, r.accepted("other"), backend.NewID().Hex(), 1000, 0, 1000,
	}}
	grant := &call{round: r.newRound(ttl, (*tally).toAll, r.meansGrant), script: r.grant, args: []any{
		"evalsha", r.grant.Hash, 4, r.record("k"), r.accepted("k"), r.mark, r.floor(), "R1|" + backend.NewID().Hex() + "|1|1|{}", 60000, 1000, 0, 86400000,
	}}
	s.do(t.Context(), []*call{renewal, grant})
	require.NoError(t, renewal.err)
	require.ErrorIs(t, grant.err, syscall.ECONNRESET)
	v := r.meansGrant(grant)
	require.Equal(t, failed, v)
	require.True(t, mayHold(grant, v))
}
