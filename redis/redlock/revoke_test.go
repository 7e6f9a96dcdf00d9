package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

// toRevoke is a hold of a Redlock that each of its nodes has.
func toRevoke(t *testing.T, nodes int, ttl time.Duration) (*double, majorityWithTokens, backend.Hold) {
	t.Helper()
	d := doubleOn(t, doubleClients(t, nodes), Options{})
	hold, _ := backendtest.Granted(t, d, redistest.Brief("k", ttl))
	backendtest.Eventually(t, "every node has it", func() bool { return d.count(t, "k") == nodes })
	return d, majorityWithTokens{d.majority}, hold
}

// TestRevokeQuorum: with whatever set of nodes up, a revocation that is
// confirmed leaves no majority to the holder when all are back, and one that is not
// says so. It never makes room for anybody.
func TestRevokeQuorum(t *testing.T) {
	t.Parallel()
	for nodes := 1; nodes <= 5; nodes++ {
		t.Run(fmt.Sprintf("%d nodes", nodes), func(t *testing.T) {
			t.Parallel()
			for up := range 1 << nodes {
				d, b, hold := toRevoke(t, nodes, ttl)
				for i, node := range d.nodes {
					if up&(1<<i) == 0 {
						node.down()
					}
				}
				err := b.Revoke(t.Context(), "k", hold.Token)
				for _, node := range d.nodes {
					node.up()
				}
				if bits.OnesCount(uint(up)) < nodes-d.quorum+1 {
					require.ErrorIs(t, err, backend.ErrUnavailable, "up: %b", up)
					require.NotErrorIs(t, err, backend.ErrNotHeld, "up: %b", up)
					backendtest.Eventually(t, "the hold goes on", func() bool { _, err := d.Renew(t.Context(), hold); return err == nil })
					require.NoError(t, b.Revoke(t.Context(), "k", hold.Token), "the rest of it, up: %b", up)
				} else {
					require.NoError(t, err, "up: %b", up)
				}
				backendtest.Eventually(t, "the holder is told", func() bool {
					_, err := d.Renew(t.Context(), hold)
					return errors.Is(err, backend.ErrNotHeld)
				})
				backendtest.Eventually(t, "the nodes that were down are asked again, and let nobody in", func() bool {
					_, err := d.Try(t.Context(), redistest.Request("k"))
					require.Error(t, err, "up: %b", up)
					return errors.Is(err, backend.ErrHeld)
				})
			}
		})
	}
}

// TestRevokeAgain: a revocation whose answers were lost is repeated, a revoked
// hold is still shown, and can be ended at once.
func TestRevokeAgain(t *testing.T) {
	t.Parallel()
	d, b, hold := toRevoke(t, 3, ttl)
	require.ErrorIs(t, b.Revoke(t.Context(), "k", hold.Token+1), backend.ErrNotHeld)
	require.ErrorIs(t, b.Revoke(t.Context(), "free", hold.Token), backend.ErrNotHeld)
	for _, node := range d.nodes {
		node.losesReply()
	}
	err := b.Revoke(t.Context(), "k", hold.Token)
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorIs(t, err, backend.ErrOutcomeUnknown)
	for _, node := range d.nodes {
		node.up()
	}
	backendtest.Eventually(t, "it is confirmed", func() bool { return b.Revoke(t.Context(), "k", hold.Token) == nil })
	rec, err := b.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, hold.Token, rec.Token)
	require.LessOrEqual(t, rec.Remaining, ttl)
	require.ErrorIs(t, b.ForceRelease(t.Context(), "k", hold.Token+1), backend.ErrNotHeld)
	require.NoError(t, b.ForceRelease(t.Context(), "k", hold.Token))
	_, g := backendtest.Granted(t, d, redistest.Request("k"))
	require.Greater(t, g.Token, hold.Token)
	require.ErrorIs(t, b.Revoke(t.Context(), "k", hold.Token), backend.ErrNotHeld)
}

// TestRevokeWhereLittleIsLeft: the record of a hold that was revoked before is
// still on one node, another is down, and the rest say that there is no such hold.
func TestRevokeWhereLittleIsLeft(t *testing.T) {
	t.Parallel()
	d, b, hold := toRevoke(t, 5, ttl)
	require.NoError(t, b.Revoke(t.Context(), "k", hold.Token))
	for _, c := range d.clients[:3] {
		require.NoError(t, c.Del(t.Context(), d.record("k")).Err())
	}
	d.nodes[4].down()
	require.ErrorIs(t, b.Revoke(t.Context(), "k", hold.Token), backend.ErrNotHeld)
	d.nodes[2].down()
	require.ErrorIs(t, b.Revoke(t.Context(), "k", hold.Token), backend.ErrUnavailable, "that may be on three of five")
}

// TestRevokeDuringTopUp: a renewal that was under way puts the hold back on
// nodes that did not have it, which therefore don't count for the revocation.
func TestRevokeDuringTopUp(t *testing.T) {
	t.Parallel()
	clients := doubleClients(t, 5)
	holder := doubleOn(t, clients, Options{})
	hold, _ := backendtest.Granted(t, holder, redistest.Request("k"))
	backendtest.Eventually(t, "every node has it", func() bool { return holder.count(t, "k") == 5 })
	holder.forget(t, "k", 3, 4)
	goOn := []func(){holder.nodes[3].stall(), holder.nodes[4].stall()}
	_, err := holder.Renew(t.Context(), hold)
	require.NoError(t, err)

	operator := doubleOn(t, clients, Options{Prefix: holder.prefix})
	for _, node := range operator.nodes[1:3] {
		node.down()
	}
	// One node has revoked it, two say that they don't have it, and two are silent.
	b := majorityWithTokens{operator.majority}
	err = b.Revoke(t.Context(), "k", hold.Token)
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.NotErrorIs(t, err, backend.ErrNotHeld)
	for _, f := range goOn {
		f()
	}
	backendtest.Eventually(t, "the hold is back", func() bool { return holder.count(t, "k") == 5 })
	_, err = holder.Renew(t.Context(), hold)
	require.NoError(t, err)
	for _, node := range operator.nodes {
		node.up()
	}
	backendtest.Eventually(t, "now it is confirmed", func() bool { return b.Revoke(t.Context(), "k", hold.Token) == nil })
	_, err = holder.Renew(t.Context(), hold)
	require.ErrorIs(t, err, backend.ErrTakenOver)
}

// TestRevokedLease is what the holder and a waiter see of it.
func TestRevokedLease(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 5)
	const ttl = 5 * time.Second
	opts := unhurried(Options{Lock: lock.Options{TTL: ttl}})
	l, err := New(t.Context(), clientsOf(t, servers), opts)
	require.NoError(t, err)
	defer l.Close()
	b := backendOn(t, servers, opts)
	lease, err := l.Acquire(t.Context(), "k", lock.WithLabel("hangs"))
	require.NoError(t, err)
	nodes := clientsOf(t, servers)
	backendtest.Eventually(t, "every node has got it", func() bool {
		for _, c := range nodes {
			if n, err := c.Exists(t.Context(), defaultPrefix+"k:k").Result(); err != nil || n == 0 {
				return false
			}
		}
		return true
	})
	servers[4].Kill(t)
	servers[3].Freeze(t)
	require.NoError(t, b.(backend.Revoker).Revoke(t.Context(), "k", lease.Token()))
	_, err = b.Try(t.Context(), redistest.Brief("k", ttl))
	require.ErrorIs(t, err, backend.ErrHeld)
	granted := make(chan uint64, 1)
	go func() {
		next, err := l.Acquire(t.Context(), "k")
		if assert.NoError(t, err) {
			select {
			case <-lease.Context().Done():
			default:
				assert.Fail(t, "granted before the holder was told")
			}
			granted <- next.Token()
		}
	}()
	<-lease.Context().Done()
	require.ErrorIs(t, context.Cause(lease.Context()), lock.ErrTakenOver)
	require.Greater(t, <-granted, lease.Token())
}

// TestForceOnANodeWithoutTheToken: a node that was asked late has the record and no
// token for it. It does not count for the confirmation: the hold may go on there.
func TestForceOnANodeWithoutTheToken(t *testing.T) {
	t.Parallel()
	d := doubleOn(t, doubleClients(t, 3), Options{})
	b := majorityWithTokens{d.majority}
	hold, g := backendtest.Granted(t, d, redistest.Request("k"))
	backendtest.Eventually(t, "all have it", func() bool { return d.count(t, "k") == 3 })
	_, err := b.Renew(t.Context(), hold) // tells the token to a node that was asked late
	require.NoError(t, err)
	d.answered(t)
	require.EqualValues(t, 1, d.clients[2].Exists(t.Context(), d.accepted("k")).Val())
	require.NoError(t, d.clients[2].Del(t.Context(), d.accepted("k")).Err())
	d.nodes[0].down()
	err = b.ForceRelease(t.Context(), "k", g.Token)
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, "a hold whose token it does not know; try again when more nodes answer")
	d.nodes[0].up()
	backendtest.Eventually(t, "two nodes remove it", func() bool { return b.ForceRelease(t.Context(), "k", g.Token) == nil })
	_, err = d.Renew(t.Context(), hold)
	require.ErrorIs(t, err, backend.ErrNotHeld)
}

// TestForceOnNodesThatAreSlow: the nodes get the request one after another, and the holder
// renews in between.
func TestForceOnNodesThatAreSlow(t *testing.T) {
	t.Parallel()
	clients := doubleClients(t, 3)
	holder := doubleOn(t, clients, Options{})
	hold, _ := backendtest.Granted(t, holder, redistest.Request("k"))
	backendtest.Eventually(t, "every node has it", func() bool { return holder.count(t, "k") == 3 })
	before := holder.records(t, "k")
	operator := doubleOn(t, clients, Options{Prefix: holder.prefix, NodeTimeout: time.Minute, Lock: lock.Options{TTL: time.Hour}})
	var goOn []func()
	for _, node := range operator.nodes {
		goOn = append(goOn, node.stall())
	}
	forced := make(chan error, 1)
	go func() { forced <- majorityWithTokens{operator.majority}.ForceRelease(t.Context(), "k", hold.Token) }()
	for i := range goOn {
		goOn[i]()
		backendtest.Eventually(t, "the node has done it", func() bool { return holder.records(t, "k")[i] != before[i] })
		if _, err := holder.Renew(t.Context(), hold); err == nil && holder.sent(placeScript) > i {
			backendtest.Eventually(t, "it is back", func() bool { return holder.records(t, "k")[i] == before[i] })
		}
	}
	require.NoError(t, <-forced)
	_, err := holder.Renew(t.Context(), hold)
	require.ErrorIs(t, err, backend.ErrNotHeld)
	backendtest.Granted(t, operator, redistest.Request("k"))
}

// TestFullMemory: nodes whose memory is full grant nothing, and what is held is
// renewed, released, revoked and forced.
func TestFullMemory(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 3)
	b := backendOn(t, servers, unhurried(Options{Lock: lock.Options{TTL: ttl}})).(majorityWithTokens)
	held, _ := backendtest.Granted(t, b, redistest.Request("held"))
	revoked, _ := backendtest.Granted(t, b, redistest.Request("revoked"))
	forced, _ := backendtest.Granted(t, b, redistest.Request("forced"))
	full := func(limit string) {
		t.Helper()
		for _, s := range servers {
			require.NoError(t, redistest.Client(t, s).ConfigSet(t.Context(), "maxmemory", limit).Err())
		}
	}
	full("1")
	_, err := b.Try(t.Context(), redistest.Request("free"))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, "OOM")
	_, err = b.Renew(t.Context(), held)
	require.NoError(t, err)
	require.NoError(t, b.Release(t.Context(), held))
	require.NoError(t, b.Revoke(t.Context(), "revoked", revoked.Token))
	rec, err := b.Inspect(t.Context(), "revoked")
	require.NoError(t, err)
	require.True(t, rec.Revoked)
	require.NoError(t, b.ForceRelease(t.Context(), "forced", forced.Token))
	full("0")
	backendtest.Granted(t, b, redistest.Request("held"))
	backendtest.Granted(t, b, redistest.Request("forced"))
}
