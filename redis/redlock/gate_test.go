package redlock

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

// TestBurst: however many callers ask at the same moment, healthy nodes serve them
// all.
func TestBurst(t *testing.T) {
	t.Parallel()
	l, err := New(t.Context(), clientsOf(t, nodeSet(t, 3)), &Options{NodeTimeout: 5 * time.Second})
	require.NoError(t, err)
	defer l.Close()
	const callers = maxQueued + maxQueued/4
	var all sync.WaitGroup
	var tries, releases atomic.Int64
	var seen atomic.Value
	leases := make([]lock.Lease, callers)
	for i := range callers {
		all.Go(func() {
			lease, err := l.TryAcquire(context.Background(), "k"+strconv.Itoa(i))
			if err != nil {
				tries.Add(1)
				seen.Store(err.Error())
			}
			leases[i] = lease
		})
	}
	all.Wait()
	for _, lease := range leases {
		all.Go(func() {
			if lease == nil {
				return
			}
			if err := lease.Release(context.Background()); err != nil {
				releases.Add(1)
				seen.Store(err.Error())
			}
		})
	}
	all.Wait()
	assert.Zero(t, tries.Load(), "tries failed: %v", seen.Load())
	assert.Zero(t, releases.Load(), "releases failed: %v", seen.Load())
}

// crowd makes so many requests that some must wait for their turn, and returns what
// became of them when all have ended.
func crowd(f func(i int) error) (errs []error) {
	errs = make([]error, 3*maxRounds)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { errs[i] = f(i) })
	}
	all.Wait()
	return errs
}

// TestTurns: the time that nodes have for an answer does not run while a caller
// waits for its turn, nor does the lease; and a caller that gives up has sent nothing.
func TestTurns(t *testing.T) {
	t.Parallel()
	const limit = 2 * time.Second
	d := doubleOn(t, doubleClients(t, 3), Options{NodeTimeout: limit})
	for range maxRounds {
		require.NoError(t, enter(t.Context(), d.gates.tries, "k"))
	}
	ctx, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan error, 1)
	go func() {
		_, err := d.Try(ctx, redistest.Request("gave up"))
		gaveUp <- err
	}()
	granted := make(chan backend.Grant, 1)
	go func() {
		g, err := d.Try(context.Background(), redistest.Request("waits"))
		assert.NoError(t, err)
		granted <- g
	}()
	// Renewals and releases have turns of their own.
	_, err := d.Renew(t.Context(), backend.Hold{Key: "other", ID: backend.NewID(), TTL: time.Minute})
	require.ErrorIs(t, err, backend.ErrNotHeld)
	require.ErrorIs(t, d.Release(t.Context(), backend.Hold{Key: "other", ID: backend.NewID(), TTL: time.Minute}), backend.ErrNotHeld)
	cancel()
	err = <-gaveUp
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, backend.ErrNotSent)
	time.Sleep(limit) // it is longer than a node has
	opened := d.clock.Now()
	for range maxRounds {
		leave(d.gates.tries)
	}
	g := <-granted
	require.GreaterOrEqual(t, g.Sent, opened)
	require.Zero(t, d.count(t, "gave up"))
	require.Empty(t, d.gates.tries)
}

// TestFrozenNodeHoldsUpNobody: a node that stands still takes no turn from
// requests that the others decide, however many there are; when a majority stands still,
// those that wait for a turn are told soon.
func TestFrozenNodeHoldsUpNobody(t *testing.T) {
	t.Parallel()
	const limit = 15 * time.Second
	clients := doubleClients(t, 3)
	d := doubleOn(t, clients, Options{NodeTimeout: limit, Lock: lock.Options{TTL: time.Minute}})
	goOn := d.nodes[0].stall()
	defer goOn()
	reqs := make([]backend.Request, 3*maxRounds)
	holds := make([]backend.Hold, len(reqs))
	start := d.clock.Now()
	for _, err := range crowd(func(i int) error {
		reqs[i] = redistest.Brief("k"+strconv.Itoa(i), 10*time.Minute)
		g, err := d.Try(t.Context(), reqs[i])
		holds[i] = backend.HoldOf(reqs[i])
		holds[i].Token = g.Token
		return err
	}) {
		require.NoError(t, err)
	}
	for _, f := range []func(i int) error{
		func(i int) error { _, err := d.Renew(t.Context(), holds[i]); return err },
		func(i int) error { return d.Release(t.Context(), holds[i]) },
	} {
		for _, err := range crowd(f) {
			require.NoError(t, err)
		}
	}
	require.Empty(t, d.gates.tries)
	require.Less(t, d.clock.Now().Sub(start), limit, "a turn waited for the node")

	d = doubleOn(t, clients, Options{NodeTimeout: 2 * time.Second})
	for _, node := range d.nodes[:2] {
		defer node.stall()()
	}
	for _, err := range crowd(func(i int) error {
		_, err := d.Try(t.Context(), redistest.Brief("m"+strconv.Itoa(i), 10*time.Minute))
		return err
	}) {
		require.ErrorIs(t, err, backend.ErrUnavailable)
		require.NotErrorIs(t, err, backend.ErrHeld)
	}
}
