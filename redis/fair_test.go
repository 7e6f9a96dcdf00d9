package redislock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/linear"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

func TestConformanceOfFair(t *testing.T) {
	t.Parallel()
	cfg := conformanceOfURL(servertest.SharedRedis(t).URL() + "?fair=true")
	cfg.Guarded = guardedOn(servertest.SharedRedis(t).URL())
	cfg.Judge = linear.Judge(t)
	conformance.Run(t, cfg)
}

func fairOf(b *redisBackend) *fairBackend { return newFair(b) }

func placed(t testing.TB, f *fairBackend, req backend.Request) *fairTicket {
	t.Helper()
	ticket, err := f.Enqueue(t.Context(), req)
	require.NoError(t, err)
	require.False(t, ticket.(*fairTicket).granted)
	return ticket.(*fairTicket)
}

type turn struct {
	who   int
	grant backend.Grant
	err   error
}

func TestFairServesInTheOrderOfArrival(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	key := backendtest.UniqueKey(t)
	hold, first := backendtest.Granted(t, fairOf(b), redistest.Request(key))
	const clients = 6
	turns := make(chan turn, clients)
	var reqs []backend.Request
	for i := range clients {
		req := redistest.Request(key)
		reqs = append(reqs, req)
		ticket := placed(t, fairOf(backendOn(t, c)), req)
		go func() {
			g, err := ticket.Wait(t.Context())
			turns <- turn{i, g, err}
		}()
	}
	_, err := fairOf(b).Try(t.Context(), redistest.Request(key))
	require.ErrorIs(t, err, backend.ErrHeld)
	last := first.Token
	for i := range clients {
		require.NoError(t, fairOf(b).Release(t.Context(), hold))
		_, err := fairOf(b).Try(t.Context(), redistest.Request(key))
		require.ErrorIs(t, err, backend.ErrHeld, "others are due")
		got := <-turns
		require.NoError(t, got.err)
		require.Equal(t, i, got.who)
		assert.Greater(t, got.grant.Token, last)
		last = got.grant.Token
		hold = backend.HoldOf(reqs[i])
	}
	require.NoError(t, fairOf(b).Release(t.Context(), hold))
	require.Zero(t, c.Exists(t.Context(), namesOf(defaultPrefix, key).queue(), namesOf(defaultPrefix, key).lives(), namesOf(defaultPrefix, key).record()).Val())
}

// Whoever is behind a dead waiter has the key when the place of the dead has
// ended, and not before.
func TestFairDeadWaiterDelaysByTheLifeOfItsPlace(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	key := backendtest.UniqueKey(t)
	f := fairOf(b)
	hold, _ := backendtest.Granted(t, f, redistest.Request(key))
	const long = time.Hour
	dead := time.Now()
	placed(t, f, redistest.Brief(key, long)) // nobody waits at it
	ticket := placed(t, fairOf(backendOn(t, c)), redistest.Brief(key, long))
	require.NoError(t, f.Release(t.Context(), hold))
	_, err := ticket.Wait(backendtest.Short(t, time.Minute))
	require.NoError(t, err)
	assert.GreaterOrEqual(t, time.Since(dead), placeLife-2*time.Millisecond, "which the server counts in milliseconds")
	assert.LessOrEqual(t, ticket.sleep, placeLife/3, "it asks soon after the end of the place")
}

func TestFairLostPushEndsByPoll(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	key := backendtest.UniqueKey(t)
	f := fairOf(b)
	backendtest.Granted(t, f, redistest.Request(key))
	ticket := placed(t, f, redistest.Request(key))
	done := make(chan error, 1)
	go func() {
		_, err := ticket.Wait(backendtest.Short(t, ttl))
		done <- err
	}()
	// The record goes without a word to anybody.
	require.NoError(t, c.Del(t.Context(), namesOf(defaultPrefix, key).record()).Err())
	require.NoError(t, <-done)
}

// A place that was lost comes back where it was.
func TestFairLostPlaceComesBack(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	key := backendtest.UniqueKey(t)
	f := fairOf(b)
	backendtest.Granted(t, f, redistest.Request(key))
	one := placed(t, f, redistest.Request(key))
	two := placed(t, f, redistest.Request(key))
	n := namesOf(defaultPrefix, key)
	name := n.queue()
	for _, lost := range [][]string{{n.queue()}, {n.lives()}, {n.queue(), n.lives()}} {
		require.NoError(t, c.Del(t.Context(), lost...).Err())
		require.NoError(t, two.ask(t.Context(), two.arrival))
		require.NoError(t, one.ask(t.Context(), one.arrival))
		require.Equal(t, []string{one.place, two.place}, c.ZRange(t.Context(), name, 0, -1).Val())
		require.ElementsMatch(t, []string{one.place, two.place}, c.ZRange(t.Context(), n.lives(), 0, -1).Val())
	}
	for _, ticket := range []*fairTicket{one, two} {
		require.NoError(t, ticket.Withdraw(t.Context()))
	}
	require.NoError(t, c.Set(t.Context(), name, "somebody else's", 0).Err())
	_, err := f.Enqueue(t.Context(), redistest.Request(key))
	require.ErrorIs(t, err, backend.ErrPermanent)
	require.Equal(t, "somebody else's", c.GetDel(t.Context(), name).Val())
}

func TestFairCancelledWaitsLeaveNothing(t *testing.T) {
	t.Parallel()
	c := redistest.Client(t, servertest.SharedRedis(t))
	locker, err := New(t.Context(), c, &Options{Fair: true})
	require.NoError(t, err)
	other, err := New(t.Context(), c, &Options{Fair: true})
	require.NoError(t, err)
	key := backendtest.UniqueKey(t)
	lease, err := locker.Acquire(t.Context(), key)
	require.NoError(t, err)
	for range 200 {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
		_, err := other.Acquire(ctx, key)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	require.NoError(t, other.Close())
	require.Zero(t, c.Exists(t.Context(), namesOf(defaultPrefix, key).queue()).Val())
	require.NoError(t, lease.Release(t.Context()))
	require.NoError(t, locker.Close())
	require.Zero(t, c.Exists(t.Context(), namesOf(defaultPrefix, key).record()).Val())
}
