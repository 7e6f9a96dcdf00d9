package redlock

import (
	"context"
	"fmt"
	"math/bits"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

// TestQuorumExact: an acquisition succeeds with the majority of all nodes and
// with nothing less, for every set of nodes that are up.
func TestQuorumExact(t *testing.T) {
	t.Parallel()
	clients := doubleClients(t, maxNodes)
	const ttl = 2 * time.Minute
	patient := Options{NodeTimeout: ttl / 4, Lock: lock.Options{TTL: ttl}} // a node that is late would be one more that is down
	for n := 1; n <= maxNodes; n++ {
		t.Run(fmt.Sprintf("%d nodes", n), func(t *testing.T) {
			for up := range 1 << n {
				d := doubleOn(t, clients[:n], patient)
				for i, node := range d.nodes {
					if up&(1<<i) == 0 {
						node.down()
					}
				}
				req := redistest.Brief("k", ttl)
				g, err := d.Try(t.Context(), req)
				enough := bits.OnesCount(uint(up)) >= n/2+1
				if !enough {
					require.ErrorIs(t, err, backend.ErrUnavailable, "up: %b", up)
					require.NotErrorIs(t, err, backend.ErrHeld, "up: %b", up)
					require.NotErrorIs(t, err, backend.ErrOutcomeUnknown, "up: %b", up)
					require.Zero(t, d.count(t, "k"), "what was granted was not given back; up: %b", up)
					continue
				}
				require.NoError(t, err, "up: %b", up)
				require.NotZero(t, g.Token)
				require.NoError(t, d.Release(t.Context(), backend.HoldOf(req)), "up: %b", up)
				backendtest.Eventually(t, "the key is free on every node", func() bool { return d.count(t, "k") == 0 })
			}
		})
	}
}

// TestErrorsAreNoVotes: what was carried out without an answer, and what is
// carried out too late, does not count, and does not stay.
func TestErrorsAreNoVotes(t *testing.T) {
	t.Parallel()
	clients := doubleClients(t, 5)
	for lost := range 6 {
		d := doubleOn(t, clients, Options{})
		for _, node := range d.nodes[:lost] {
			node.losesReply()
		}
		_, err := d.Try(t.Context(), redistest.Request("k"))
		if lost <= 2 {
			require.NoError(t, err, "%d lost", lost)
			continue
		}
		require.ErrorIs(t, err, backend.ErrUnavailable, "%d lost", lost)
		require.ErrorIs(t, err, backend.ErrOutcomeUnknown, "a grant may be on the nodes that did not answer")
		backendtest.Eventually(t, "the key is free on every node", func() bool { return d.count(t, "k") == 0 })
	}
}

// TestRefusals: the refusals of a majority are contention, and name the
// holder; those of a minority are outvoted.
func TestRefusals(t *testing.T) {
	t.Parallel()
	clients := doubleClients(t, 5)
	for held := range 6 {
		d := doubleOn(t, clients, Options{})
		for i := range held {
			d.rival(t, "k", i)
		}
		rival := make([]int, held)
		for i := range rival {
			rival[i] = i
		}
		d.rival(t, "k", rival...)
		before := d.records(t, "k")
		req := redistest.Request("k")
		_, err := d.Try(t.Context(), req)
		if held <= 2 {
			require.NoError(t, err, "%d held", held)
			require.NoError(t, d.Release(t.Context(), backend.HoldOf(req)))
		} else {
			var refusal *backend.HeldError
			require.ErrorAs(t, err, &refusal, "%d held", held)
			assert.Equal(t, "rival", refusal.Holder.Label)
			assert.InDelta(t, time.Minute, refusal.Remaining, float64(10*time.Second))
		}
		backendtest.Eventually(t, "only the rival's records stay", func() bool { return assert.ObjectsAreEqual(before, d.records(t, "k")) })
	}
}

// TestCancelled: a call that is cancelled returns, and a node that carries
// its request out later gets the release behind it.
func TestCancelled(t *testing.T) {
	t.Parallel()
	d := doubleOn(t, doubleClients(t, 3), Options{})
	goOn := []func(){d.nodes[1].stall(), d.nodes[2].stall()}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := d.Try(ctx, redistest.Request("k"))
		ended <- err
	}()
	backendtest.Eventually(t, "the first node grants it", func() bool { return d.count(t, "k") == 1 })
	cancel()
	err := <-ended
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, backend.ErrUnavailable)
	for _, f := range goOn {
		f()
	}
	backendtest.Eventually(t, "the key is free on every node", func() bool { return d.count(t, "k") == 0 })
}

// TestLateReleaseOfAnAttempt: the release of an attempt that failed, which is
// sent behind a grant that came late, leaves the next attempt of the same
// acquisition alone.
func TestLateReleaseOfAnAttempt(t *testing.T) {
	t.Parallel()
	d := doubleOn(t, doubleClients(t, 3), Options{})
	d.rival(t, "k", 0, 1)
	goOn := d.nodes[2].stall()
	req := redistest.Request("k")
	_, err := d.Try(t.Context(), req)
	require.ErrorIs(t, err, backend.ErrHeld)
	d.forget(t, "k", 0)
	granted := make(chan error)
	go func() {
		_, err := d.Try(t.Context(), req)
		granted <- err
	}()
	backendtest.Eventually(t, "the second attempt is on its way", func() bool {
		n := d.majority.nodes[2]
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.queue) == 1
	})
	goOn()
	require.NoError(t, <-granted)
	require.NoError(t, d.Close()) // when it returns, the late release has arrived
	records := d.records(t, "k")
	assert.Contains(t, records[0], req.ID.Hex())
	assert.Contains(t, records[2], req.ID.Hex())
}

// TestSilentNode: a node that does not answer costs nothing while the others
// decide, is asked one thing at a time, and gets the releases that it missed.
func TestSilentNode(t *testing.T) {
	t.Parallel()
	d := doubleOn(t, doubleClients(t, 3), Options{})
	n := d.majority.nodes[2]
	n.timeout = 100 * time.Millisecond
	goOn := d.nodes[2].stall()
	defer goOn()
	var holds []backend.Hold
	acquire := func() {
		hold, _ := backendtest.Granted(t, d, redistest.Request(fmt.Sprintf("k%d", len(holds))))
		require.NoError(t, d.Release(t.Context(), hold))
		holds = append(holds, hold)
	}
	waiting := func() (requests int, silent bool) {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.queue), n.silent(d.clock.Now())
	}
	acquire()
	backendtest.Eventually(t, "the node is known not to answer", func() bool { _, silent := waiting(); return silent })
	before, _ := waiting()
	for range 20 {
		acquire()
	}
	after, _ := waiting()
	assert.Equal(t, before, after, "it is asked while it does not answer")
	goOn()
	d.nodes[2].up()
	backendtest.Eventually(t, "the node answers again and has none of the keys", func() bool {
		hold, _ := backendtest.Granted(t, d, redistest.Request("last"))
		require.NoError(t, d.Release(t.Context(), hold))
		for _, hold := range holds {
			if d.count(t, hold.Key) > 0 {
				return false
			}
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.failures == 0
	})
}

// TestExtend: a renewal needs a majority that had the hold without a break.
// It puts the hold back on the others, which count from then on.
func TestExtend(t *testing.T) {
	t.Parallel()
	clients := doubleClients(t, 5)
	begin := func(t *testing.T) (*double, backend.Hold) {
		d := doubleOn(t, clients, Options{})
		hold, _ := backendtest.Granted(t, d, redistest.Request("k"))
		backendtest.Eventually(t, "every node has it", func() bool { return d.count(t, "k") == 5 })
		return d, hold
	}
	t.Run("a minority lacks it", func(t *testing.T) {
		d, hold := begin(t)
		d.forget(t, "k", 0, 1)
		_, err := d.Renew(t.Context(), hold)
		require.NoError(t, err)
		backendtest.Eventually(t, "every node has it again", func() bool { return d.count(t, "k") == 5 })
		d.forget(t, "k", 2, 3)
		_, err = d.Renew(t.Context(), hold)
		require.NoError(t, err, "what was put back counts by now")
		for i, c := range clients {
			token, err := c.Get(t.Context(), d.accepted("k")).Result()
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("%d|%s", hold.Token, hold.ID.Hex()), token, "node %d", i)
		}
	})
	t.Run("a majority lacks it", func(t *testing.T) {
		d, hold := begin(t)
		d.forget(t, "k", 0, 1, 2)
		_, err := d.Renew(t.Context(), hold)
		require.ErrorIs(t, err, backend.ErrTakenOver)
		require.NoError(t, d.Close())
		require.Equal(t, 2, d.count(t, "k"), "nothing is put back without a majority, and nothing is released")
	})
	t.Run("a minority lacks it and others don't answer", func(t *testing.T) {
		d, hold := begin(t)
		d.forget(t, "k", 0, 1)
		d.nodes[2].down()
		_, err := d.Renew(t.Context(), hold)
		require.ErrorIs(t, err, backend.ErrUnavailable)
		require.NotErrorIs(t, err, backend.ErrNotHeld, "the node that is down may have it")
		require.NoError(t, d.Close())
		require.Equal(t, 3, d.count(t, "k"))
	})
	t.Run("somebody else has it on a minority", func(t *testing.T) {
		d, hold := begin(t)
		d.rival(t, "k", 0, 1)
		rivals := d.records(t, "k")[:2]
		_, err := d.Renew(t.Context(), hold)
		require.NoError(t, err)
		require.NoError(t, d.Close())
		require.Equal(t, rivals, d.records(t, "k")[:2])
	})
	t.Run("released meanwhile", func(t *testing.T) {
		d, hold := begin(t)
		d.forget(t, "k", 4)
		goOn := d.nodes[4].stall()
		defer goOn()
		_, err := d.Renew(t.Context(), hold)
		require.NoError(t, err)
		require.NoError(t, d.Release(t.Context(), hold))
		goOn() // and the late "I don't have it" does not put the hold back
		require.NoError(t, d.Close())
		require.Zero(t, d.count(t, "k"))
	})
}

// TestSplitVotes: when all ask at the same moment, one of them gets the key.
func TestSplitVotes(t *testing.T) {
	t.Parallel()
	clients := doubleClients(t, 3)
	prefix := "double:" + backend.NewID().Hex()[:8] + ":"
	var contenders []*double
	for range 10 {
		contenders = append(contenders, doubleOn(t, clients, Options{Prefix: prefix}))
	}
	for round := range 10 {
		key := fmt.Sprintf("k%d", round)
		start := make(chan struct{})
		results := make(chan error)
		for _, c := range contenders {
			go func() {
				<-start
				_, err := c.Try(t.Context(), redistest.Request(key))
				results <- err
			}()
		}
		close(start)
		won := 0
		for range contenders {
			if err := <-results; err == nil {
				won++
			} else {
				assert.ErrorIs(t, err, backend.ErrHeld)
			}
		}
		require.Equal(t, 1, won)
	}
}

// TestNotWaitedFor: when so many nodes have failed that the others make no
// difference, those are not said to have failed, and don't change what the error matches.
func TestNotWaitedFor(t *testing.T) {
	t.Parallel()
	clients := doubleClients(t, 5)
	begin := func(t *testing.T, opts Options) (*double, backend.Hold) {
		d := doubleOn(t, clients, opts)
		hold, _ := backendtest.Granted(t, d, redistest.Request("k"))
		backendtest.Eventually(t, "every node has it", func() bool { return d.count(t, "k") == 5 })
		d.answered(t)
		for _, n := range d.majority.nodes {
			n.mu.Lock()
			failure := n.failure
			n.mu.Unlock()
			require.NoError(t, failure, "a node that has failed is not asked while it is at work")
		}
		return d, hold
	}
	stall := func(t *testing.T, nodes ...*flaky) {
		for _, node := range nodes {
			t.Cleanup(node.stall())
		}
	}
	decided := func(t *testing.T, err error, failed, notWaitedFor int) {
		t.Helper()
		require.ErrorContains(t, err, fmt.Sprintf("%d of 5 nodes failed, and 3 are needed: ", failed))
		require.Equal(t, notWaitedFor, strings.Count(err.Error(), ": not waited for"), "%v", err)
		require.NotContains(t, err.Error(), "no answer within")
		require.NotErrorIs(t, err, backend.ErrOutcomeUnknown)
	}
	t.Run("a majority is down", func(t *testing.T) {
		d, hold := begin(t, Options{})
		for _, node := range d.nodes[:3] {
			node.down()
		}
		stall(t, d.nodes[3:]...)
		_, err := d.Renew(t.Context(), hold)
		require.ErrorIs(t, err, backend.ErrUnavailable)
		decided(t, err, 3, 2)
		err = d.Release(t.Context(), hold)
		require.ErrorIs(t, err, backend.ErrUnavailable)
		decided(t, err, 3, 2)
	})
	t.Run("a majority has foreign data", func(t *testing.T) {
		d, hold := begin(t, Options{})
		for _, c := range clients[:3] {
			require.NoError(t, c.Set(t.Context(), d.record("k"), "foreign", time.Minute).Err())
		}
		stall(t, d.nodes[3:]...)
		_, err := d.Renew(t.Context(), hold)
		require.ErrorIs(t, err, backend.ErrPermanent)
		require.NotErrorIs(t, err, backend.ErrUnavailable)
		decided(t, err, 3, 2)
	})
	t.Run("the caller gives up", func(t *testing.T) {
		d, hold := begin(t, Options{})
		stall(t, d.nodes...)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			_, err := d.Renew(ctx, hold)
			ended <- err
		}()
		backendtest.Eventually(t, "the nodes are asked", func() bool { return d.sent(renewScript) == 5 || len(ended) > 0 })
		cancel()
		err := <-ended
		require.ErrorIs(t, err, context.Canceled)
		decided(t, err, 0, 5)
	})
	t.Run("their time runs out", func(t *testing.T) {
		d, hold := begin(t, Options{})
		stall(t, d.nodes[:3]...)
		hold.TTL = 6 * time.Second
		_, err := d.Renew(t.Context(), hold)
		require.ErrorIs(t, err, backend.ErrUnavailable)
		require.ErrorIs(t, err, backend.ErrOutcomeUnknown, "they may carry it out later")
		require.ErrorContains(t, err, "3 of 5 nodes failed")
		require.Equal(t, 3, strings.Count(err.Error(), "no answer within 2s"), "%v", err)
	})
}

// TestRefusalShowsTheLongerTime: a renewal that a majority has heard is shown by a refusal
// and by Inspect, though one node has not heard it and another one does not answer.
func TestRefusalShowsTheLongerTime(t *testing.T) {
	t.Parallel()
	d := doubleOn(t, doubleClients(t, 3), Options{})
	hold, _ := backendtest.Granted(t, d, redistest.Brief("k", 20*time.Second))
	_, err := d.Renew(t.Context(), hold) // on all nodes, with the token
	require.NoError(t, err)
	backendtest.Eventually(t, "every node has it", func() bool { return d.count(t, "k") == 3 })
	d.nodes[2].down()
	hold.TTL = time.Minute
	_, err = d.Renew(t.Context(), hold)
	require.NoError(t, err)
	d.nodes[2].up()
	d.nodes[0].down()
	_, err = d.Try(t.Context(), redistest.Request("k"))
	var refusal *backend.HeldError
	require.ErrorAs(t, err, &refusal)
	assert.Greater(t, refusal.Remaining, 20*time.Second)
	rec, err := d.Inspect(t.Context(), "k")
	require.NoError(t, err)
	assert.Greater(t, rec.Remaining, 20*time.Second)
}
