package zklock

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
)

// leads reports whether the member is the leader.
func leads(t testing.TB, s *servertest.Server) bool {
	return strings.Contains(word(t, s, "srvr"), "Mode: leader")
}

// connectedTo is the member that the backend's session is on.
func connectedTo(b *zkBackend, members []*servertest.Server) *servertest.Server {
	at := b.current.conn.Server()
	for _, m := range members {
		if m.Addr() == at {
			return m
		}
	}
	return nil
}

// TestFailover disturbs a member of three while a key is held and others wait for it:
// either the hold survives, or its context ends before anybody else is granted.
func TestFailover(t *testing.T) {
	t.Parallel()
	const ttl = 12 * time.Second
	type disturbed struct {
		name     string
		leader   bool
		survives bool // not only may it
	}
	failover := func(t *testing.T, members []*servertest.Server, disturb func(testing.TB, *servertest.Server) (undo func()), c disturbed) {
		t.Run(c.name, func(t *testing.T) {
			var victim *servertest.Server
			for _, m := range members {
				if leads(t, m) == c.leader {
					victim = m
				}
			}
			require.NotNil(t, victim)
			opts := func() *Options { return &Options{Lock: lock.Options{TTL: ttl}} }
			b := backendOn(t, opts(), members...)
			for connectedTo(b, members) != victim { // which one it begins with is random
				require.NoError(t, b.Close())
				b = backendOn(t, opts(), members...)
			}
			l := lockerOn(t, b)
			others := lockerOn(t, backendOn(t, opts(), members...))
			key := backendtest.UniqueKey(t)
			lease, err := l.Acquire(t.Context(), key)
			require.NoError(t, err)
			type got struct {
				lease lock.Lease
				lost  bool // the holder's context had ended at that moment
			}
			grants := make(chan got, 1)
			waiting, stop := context.WithCancel(t.Context())
			defer stop()
			go func() {
				next, err := others.Acquire(waiting, key)
				if err != nil {
					assert.ErrorIs(t, err, context.Canceled)
					grants <- got{}
					return
				}
				grants <- got{next, lease.Context().Err() != nil}
			}()
			undo := disturb(t, victim)
			// It has survived when it was renewed after the session of the disturbed member
			// would have expired.
			survival := time.Now().Add(2 * ttl)
			limit := time.After(2 * time.Minute)
			look := time.NewTicker(20 * time.Millisecond)
			defer look.Stop()
			survived, lost := false, false
			for !survived && !lost {
				select {
				case <-lease.Context().Done():
					lost = true
					require.ErrorIs(t, context.Cause(lease.Context()), backend.ErrLost)
					t.Log("the hold was lost:", context.Cause(lease.Context()))
					require.False(t, c.survives, "it had to survive")
				case <-look.C:
					deadline, _ := lease.Deadline()
					survived = deadline.After(survival)
				case g := <-grants:
					t.Fatalf("somebody else was granted the key (%v) beside the holder", g.lease)
				case <-limit:
					t.Fatal("the hold was neither renewed nor lost")
				}
			}
			undo()
			if survived {
				require.NoError(t, lease.Renew(t.Context()))
				require.NoError(t, lease.Release(t.Context()))
			}
			g := <-grants
			require.NotNil(t, g.lease)
			require.True(t, g.lost, "the holder was told before the next one was granted")
			require.Greater(t, g.lease.Token(), lease.Token())
			require.NoError(t, g.lease.Release(t.Context()))
		})
	}
	for name, disturb := range map[string]func(testing.TB, *servertest.Server) func(){"stopped": freeze, "killed": kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			members := servertest.ZooKeeperCluster(t, 3)
			failover(t, members, disturb, disturbed{"the holder's follower", false, true})
			failover(t, members, disturb, disturbed{"the leader", true, false}) // the last: it may believe for a while that it still leads
		})
	}
}

func freeze(t testing.TB, s *servertest.Server) func() {
	s.Freeze(t)
	return func() { s.Resume(t) }
}

func kill(t testing.TB, s *servertest.Server) func() {
	s.Kill(t)
	return func() { s.Restart(t, true) }
}

// A single server that is killed and comes back with its data keeps sessions, nodes and
// the order of tokens.
func TestRestartKeepsHoldsAndTokens(t *testing.T) {
	t.Parallel()
	const ttl = longest
	server := servertest.ZooKeeper(t, servertest.WithPersistence())
	b := backendOn(t, &Options{Lock: lock.Options{TTL: ttl}}, server)
	l := lockerOn(t, b)
	lease, err := l.Acquire(t.Context(), "kept")
	require.NoError(t, err)
	server.Restart(t, true)
	backendtest.Eventually(t, "the hold is renewed", func() bool { return lease.Renew(t.Context()) == nil })
	other := backendOn(t, &Options{Lock: lock.Options{TTL: ttl}}, server)
	_, err = other.Try(t.Context(), backend.Request{Key: "kept", ID: backend.NewID(), TTL: ttl})
	require.ErrorIs(t, err, backend.ErrHeld)
	require.NoError(t, lease.Release(t.Context()))
	_, g := backendtest.Granted(t, other, backend.Request{Key: "kept", ID: backend.NewID(), TTL: ttl})
	assert.Greater(t, g.Token, lease.Token())
}
