package etcdlock

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/linear"
	"github.com/mortiselock/lock/internal/servertest"
)

func clusterURL(members []*servertest.Server) string {
	var addrs []string
	for _, m := range members {
		addrs = append(addrs, m.Addr())
	}
	return "etcd://" + strings.Join(addrs, ",") + "/cluster"
}

// eachVersion runs the test on clusters of an older release, which is in use, and of
// a current one, which renews leases in another way.
func eachVersion(t *testing.T, test func(t *testing.T, members []*servertest.Server), opts ...servertest.Option) {
	t.Parallel()
	for name, start := range map[string]func(servertest.TB, int, ...servertest.Option) []*servertest.Server{
		"packaged": servertest.EtcdCluster, "current": servertest.EtcdCurrentCluster,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, start(t, 3, opts...))
		})
	}
}

func TestConformanceOnThreeMembers(t *testing.T) {
	eachVersion(t, func(t *testing.T, members []*servertest.Server) {
		cfg := conformanceOfURL(clusterURL(members))
		cfg.Judge = linear.Judge(t)
		conformance.Run(t, cfg)
	})
}

// guardedKey watches over a key that clients hold one after the other: nobody is
// granted it while another's lease says that it is held.
type guardedKey struct {
	holders atomic.Int64
	grants  atomic.Int64
	both    atomic.Bool
}

func (g *guardedKey) hold(l lock.Lease, d time.Duration) {
	if g.holders.Add(1) > 1 {
		g.both.Store(true)
	}
	g.grants.Add(1)
	timer := time.NewTimer(d)
	defer timer.Stop()
	for work := true; work; {
		select {
		case <-timer.C:
			work = false
		case <-l.Context().Done():
			work = false
		}
	}
	g.holders.Add(-1)
}

// leader is the index of the member that leads, as the others see it.
func leader(t *testing.T, c *clientv3.Client, members []*servertest.Server) int {
	t.Helper()
	found := -1
	eventually(t, "there is a leader", func() bool {
		for i, m := range members {
			s, err := c.Status(short(t, time.Second), "http://"+m.Addr())
			if err == nil && s.Leader == s.Header.MemberId {
				found = i
				return true
			}
		}
		return false
	})
	return found
}

// While members are killed, stopped and made to lose the lead, a hold survives or
// is reported lost before anybody else is granted the key.
func TestMemberFaults(t *testing.T) {
	eachVersion(t, memberFaults, servertest.WithControl())
}

func memberFaults(t *testing.T, members []*servertest.Server) {
	admin := clientOf(t, members...)
	const ttl = 4 * time.Second
	var g guardedKey
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 3 {
		l := lockerOn(t, clientOf(t, members...), ttl)
		wg.Go(func() {
			for ctx.Err() == nil {
				lease, err := l.Acquire(ctx, "contended")
				if err != nil {
					continue
				}
				g.hold(lease, 50*time.Millisecond)
				_ = lease.Release(context.WithoutCancel(ctx))
			}
		})
	}
	long := lockerOn(t, clientOf(t, members...), 15*time.Second)
	kept, err := long.Acquire(t.Context(), "kept")
	require.NoError(t, err)
	progress := func(what string) {
		before := g.grants.Load()
		eventually(t, what, func() bool { return g.grants.Load() > before+3 })
	}
	progress("the lock works")

	lead := leader(t, admin, members)
	target, err := admin.Status(t.Context(), "http://"+members[(lead+1)%3].Addr())
	require.NoError(t, err)
	direct := clientOf(t, members[lead])
	_, err = direct.MoveLeader(t.Context(), target.Header.MemberId)
	require.NoError(t, err)
	progress("after a change of leader")

	lead = leader(t, admin, members)
	members[lead].Freeze(t)
	progress("while the former leader stands still")
	members[lead].Resume(t)
	progress("after it went on")

	lead = leader(t, admin, members)
	members[lead].Kill(t)
	progress("while the former leader is dead")
	members[lead].Restart(t, true)
	progress("after it came back")

	require.NoError(t, kept.Context().Err(), "a hold with time enough survives all of it")
	stop()
	wg.Wait()
	assert.False(t, g.both.Load(), "two clients held the key at once")
	require.NoError(t, kept.Renew(t.Context()))
	require.NoError(t, kept.Release(t.Context()))
}

// Without a quorum, and so without a leader, calls end with their contexts, a release
// among them; the loss comes by the deadline; and everything goes on when the quorum is
// back.
func TestNoQuorum(t *testing.T) {
	eachVersion(t, noQuorum, servertest.WithControl())
}

func noQuorum(t *testing.T, members []*servertest.Server) {
	l := lockerOn(t, clientOf(t, members...), 4*time.Second)
	lease, err := l.Acquire(t.Context(), "a")
	require.NoError(t, err)
	released, err := l.Acquire(t.Context(), "b")
	require.NoError(t, err)
	waiting := make(chan error, 1)
	members[0].Kill(t)
	members[1].Kill(t)
	go func() {
		_, err := l.Acquire(short(t, time.Second), "a")
		waiting <- err
	}()
	start := time.Now()
	err = released.Release(short(t, 100*time.Millisecond))
	require.ErrorIs(t, err, lock.ErrOutcomeUnknown)
	_, err = l.TryAcquire(short(t, 500*time.Millisecond), "c")
	require.Error(t, err)
	require.Less(t, time.Since(start), 3*time.Second)
	require.ErrorIs(t, <-waiting, context.DeadlineExceeded)
	lostWithin(t, lease, 8*time.Second, lock.ErrExpired)
	members[0].Restart(t, true)
	members[1].Restart(t, true)
	for _, key := range []string{"a", "b"} {
		next, err := l.Acquire(short(t, 20*time.Second), key)
		require.NoError(t, err)
		require.Greater(t, next.Token(), lease.Token())
		require.NoError(t, next.Release(t.Context()))
	}
}
