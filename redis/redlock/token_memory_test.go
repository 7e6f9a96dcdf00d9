package redlock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

// remembers is for how long each node remembers the token of the key; -2 ns: not at all.
func (d *double) remembers(t *testing.T, key string) []time.Duration {
	t.Helper()
	var left []time.Duration
	for _, c := range d.clients {
		ttl, err := c.PTTL(t.Context(), d.accepted(key)).Result()
		require.NoError(t, err)
		left = append(left, ttl)
	}
	return left
}

// TestRenewalKeepsTheTokenInMind: a node remembers a token for a day from the last
// renewal on, and not from the grant on, so that a hold which lasts for longer stays
// visible and can be revoked.
func TestRenewalKeepsTheTokenInMind(t *testing.T) {
	t.Parallel()
	d := doubleOn(t, doubleClients(t, 3), Options{})
	hold, _ := backendtest.Granted(t, d, redistest.Request("k"))
	backendtest.Eventually(t, "every node has it", func() bool { return d.count(t, "k") == 3 })
	for _, c := range d.clients { // most of the day passes
		require.NoError(t, c.PExpire(t.Context(), d.accepted("k"), time.Hour).Err())
	}
	_, err := d.Renew(t.Context(), hold)
	require.NoError(t, err)
	backendtest.Eventually(t, "a day is left on each node", func() bool {
		for _, left := range d.remembers(t, "k") {
			if left < 23*time.Hour {
				return false
			}
		}
		return true
	})
}

// TestRenewalTellsTheToken: nodes that have the hold without its token, because
// they were asked late, or have forgotten it, learn it with the next renewal.
func TestRenewalTellsTheToken(t *testing.T) {
	t.Parallel()
	d := doubleOn(t, doubleClients(t, 3), Options{})
	b := majorityWithTokens{d.majority}
	hold, _ := backendtest.Granted(t, d, redistest.Request("k"))
	backendtest.Eventually(t, "every node has it", func() bool { return d.count(t, "k") == 3 })
	require.NoError(t, d.clients[0].Del(t.Context(), d.accepted("k")).Err())
	require.NoError(t, d.clients[1].Del(t.Context(), d.accepted("k")).Err())
	d.accept(t, "k", int64(hold.Token)-1000, 2) // of somebody before
	_, err := d.Inspect(t.Context(), "k")
	require.Error(t, err)
	_, err = d.Renew(t.Context(), hold)
	require.NoError(t, err)
	backendtest.Eventually(t, "the hold can be seen on all", func() bool {
		for _, c := range d.clients {
			if c.Get(t.Context(), d.accepted("k")).Val() != fmt.Sprintf("%d|%s", hold.Token, hold.ID.Hex()) {
				return false
			}
		}
		return true
	})
	rec, err := d.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, hold.Token, rec.Token)

	// A larger one, of an acquisition that failed, stays.
	d.accept(t, "k", int64(hold.Token)+1000, 2)
	_, err = d.Renew(t.Context(), hold)
	require.NoError(t, err)
	d.settle(t.Context())
	require.NotContains(t, d.clients[2].Get(t.Context(), d.accepted("k")).Val(), hold.ID.Hex())
	require.NoError(t, b.Revoke(t.Context(), "k", hold.Token))
}

// TestTopUpKeepsTheTokenInMind: a node that gets the hold back remembers its token
// from then on.
func TestTopUpKeepsTheTokenInMind(t *testing.T) {
	t.Parallel()
	d := doubleOn(t, doubleClients(t, 3), Options{})
	hold, _ := backendtest.Granted(t, d, redistest.Request("k"))
	backendtest.Eventually(t, "every node has it", func() bool { return d.count(t, "k") == 3 })
	d.forget(t, "k", 0)
	require.NoError(t, d.clients[0].PExpire(t.Context(), d.accepted("k"), time.Hour).Err())
	_, err := d.Renew(t.Context(), hold)
	require.NoError(t, err)
	backendtest.Eventually(t, "it is put back, for a day", func() bool {
		return d.count(t, "k") == 3 && d.remembers(t, "k")[0] > 23*time.Hour
	})
}

// TestTokenMemory: the setting is what the nodes are told, by every request that
// they remember a token for, and no less than twice the longest restart delay.
func TestTokenMemory(t *testing.T) {
	t.Parallel()
	// A node that did not hear of the grant in time hears of it with a renewal, not before.
	within := func(d *double, hold backend.Hold, least, most time.Duration, renew bool) {
		t.Helper()
		backendtest.Eventually(t, fmt.Sprintf("nodes remember the token for %s", most), func() bool {
			if renew {
				_, err := d.Renew(t.Context(), hold)
				require.NoError(t, err)
			}
			told := 0
			for _, left := range d.remembers(t, hold.Key) {
				if left >= least && left <= most {
					told++
				} else if renew || left > 0 {
					return false
				}
			}
			return told >= 2
		})
	}
	d := doubleOn(t, doubleClients(t, 3), Options{TokenMemory: 10 * time.Minute})
	for i := range 2 { // the second one with a token that is proposed, most likely
		hold, _ := backendtest.Granted(t, d, redistest.Request(fmt.Sprint(i)))
		within(d, hold, 9*time.Minute, 10*time.Minute, false)
		for _, c := range d.clients {
			require.NoError(t, c.PExpire(t.Context(), d.accepted(hold.Key), time.Hour).Err())
		}
		within(d, hold, 9*time.Minute, 10*time.Minute, true)
	}
	d.longestDelay = time.Hour // another Locker has had longer leases there
	hold, _ := backendtest.Granted(t, d, redistest.Request("longer"))
	within(d, hold, 119*time.Minute, 2*time.Hour, false)

	for _, c := range []struct{ memory, delay, ttl time.Duration }{
		{-1, 0, 0},
		{29 * time.Second, 0, 0},
		{119 * time.Second, time.Minute, 0},
		{119 * time.Second, 0, time.Minute},
	} {
		_, err := newMajority(d.clients, false, Options{TokenMemory: c.memory, RestartDelay: c.delay, Lock: lock.Options{TTL: c.ttl}})
		require.ErrorIs(t, err, backend.ErrInvalid, "%v", c)
	}
	b, err := newMajority(d.clients, false, Options{TokenMemory: 30 * time.Second})
	require.NoError(t, err)
	defer b.Close()
	require.Contains(t, fmt.Sprint(b.Guarantees().Assumptions), "forgets it 30s after")
	require.Equal(t, int64(30_000), b.memory(time.Second))
	b.tokenMemory = 0
	require.Equal(t, (24 * time.Hour).Milliseconds(), b.memory(time.Second))
	require.Equal(t, (50 * time.Hour).Milliseconds(), b.memory(5*time.Hour))
}

// TestTokensAfterALossOfData: a minority of those that accepted a token loses its
// data. The next majority has not seen the token, and the nodes' clocks have passed it.
func TestTokensAfterALossOfData(t *testing.T) {
	t.Parallel()
	d := doubleOn(t, doubleClients(t, 3), Options{})
	d.nodes[2].down()
	hold, first := backendtest.Granted(t, d, redistest.Request("k"))
	require.NoError(t, d.Release(t.Context(), hold))
	d.nodes[2].up()
	require.NoError(t, d.clients[1].Del(t.Context(), d.accepted("k"), d.record("k")).Err())
	d.nodes[0].down()
	backendtest.Eventually(t, "the clocks have passed the token, for which the restart delay is long enough", func() bool {
		return nodeTime(t, d.clients[1]) > int64(first.Token)
	})
	backendtest.Eventually(t, "the others grant", func() bool {
		g, err := d.Try(t.Context(), redistest.Request("k"))
		if err == nil {
			require.Greater(t, g.Token, first.Token)
		}
		return err == nil
	})
}

// TestFailedRenewalNamesAll: the error of a renewal that too few confirmed names
// the nodes that say that they don't have the hold, beside those that don't answer.
func TestFailedRenewalNamesAll(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		without func(d *double)
		text    string
	}{
		"the key is free there":      {func(d *double) { d.forget(t, "k", 1) }, "no longer has the key"},
		"somebody else has it there": {func(d *double) { d.rival(t, "k", 1) }, "no longer has the key, and somebody else does"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := doubleOn(t, doubleClients(t, 3), Options{})
			for i := range d.majority.nodes {
				d.majority.nodes[i].name = fmt.Sprint("node ", i)
			}
			hold, _ := backendtest.Granted(t, d, redistest.Request("k"))
			backendtest.Eventually(t, "every node has it", func() bool { return d.count(t, "k") == 3 })
			c.without(d)
			d.nodes[2].down()
			_, err := d.Renew(t.Context(), hold)
			require.ErrorIs(t, err, backend.ErrUnavailable)
			assert.ErrorContains(t, err, "node 1: "+c.text)
			assert.ErrorContains(t, err, "node 2: ")
			assert.ErrorContains(t, err, "1 of 3 nodes failed, 1 refused, and 2 are needed")
			assert.NotContains(t, err.Error(), "node 0")
			err = majorityWithTokens{d.majority}.Revoke(context.Background(), "k", hold.Token)
			assert.ErrorContains(t, err, "node 1: does not have the hold")
		})
	}
}
