package redislock

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

// anySubscriber is whether the server has subscribers to the channels of the fair mode.
func anySubscriber(t *testing.T, c *goredis.Client) bool {
	t.Helper()
	channels, err := c.PubSubChannels(t.Context(), defaultPrefix+"w:*").Result()
	require.NoError(t, err)
	return len(channels) > 0
}

// A place that is given up before anybody waits at it is watched no longer.
func TestFairWithdrawnPlaceIsNotWatched(t *testing.T) {
	t.Parallel()
	c := redistest.Client(t, servertest.Redis(t))
	f := fairOf(backendOn(t, c))
	key := backendtest.UniqueKey(t)
	backendtest.Granted(t, f, redistest.Request(key))
	staying := placed(t, f, redistest.Request(key))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = staying.Wait(ctx)
	}()
	backendtest.Eventually(t, "the client knows that the channel is subscribed to", func() bool {
		w := newWatcher(false, "")
		defer f.b.hub.Remove(f.channelOf(f.name), w)
		return f.b.hub.Join(f.channelOf(f.name), w)
	})
	for range 10 {
		ticket := placed(t, f, redistest.Request(key))
		require.NotNil(t, ticket.watch.Load(), "it uses the subscription that there is")
		require.NoError(t, ticket.Withdraw(t.Context()))
	}
	stop()
	<-ended
	require.NoError(t, staying.Withdraw(t.Context()))
	backendtest.Eventually(t, "nobody subscribes any more", func() bool { return !anySubscriber(t, c) })
}

// Waits that are cancelled at any moment, also while they take their place, leave no
// subscription.
func TestFairCancelledWaitsLeaveNoSubscription(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	c := redistest.Client(t, server)
	l, err := lock.Open(t.Context(), server.URL()+"?fair=true", nil)
	require.NoError(t, err)
	t.Cleanup(func() {
		// On a slow machine not every release is confirmed in time, which isn't judged here.
		if err := l.Close(); !errors.Is(err, lock.ErrOutcomeUnknown) {
			require.NoError(t, err)
		}
	})
	const keys = 16
	for i := range keys {
		_, err := l.Acquire(t.Context(), strconv.Itoa(i))
		require.NoError(t, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var staying, cancelled sync.WaitGroup
	staying.Go(func() { _, _ = l.Acquire(ctx, "0") })
	backendtest.Eventually(t, "the channel is subscribed to", func() bool { return anySubscriber(t, c) })
	for i := 1; i < keys; i++ {
		cancelled.Go(func() {
			for range 60 {
				brief, end := context.WithCancel(t.Context())
				timer := time.AfterFunc(rand.N(3*time.Millisecond), end)
				_, err := l.Acquire(brief, strconv.Itoa(i))
				timer.Stop()
				end()
				if err == nil {
					t.Error("the key is held")
				}
			}
		})
	}
	cancelled.Wait()
	stop()
	staying.Wait()
	backendtest.Eventually(t, "nobody subscribes any more", func() bool { return !anySubscriber(t, c) })
}

// A place knows whether one of its requests may arrive when it was given up: one that
// lost its answer, whatever its repeat was told.
func TestFairPlaceThatARequestMayTakeAgain(t *testing.T) {
	t.Parallel()
	b, direct, p := behindProxy(t)
	f := fairOf(b)
	key := backendtest.UniqueKey(t)
	hold, _ := backendtest.Granted(t, fairOf(backendOn(t, direct)), redistest.Request(key))
	first := placed(t, f, redistest.Request(key)) // the server learns the script
	require.False(t, first.MayArrive())
	req := redistest.Request(key)
	p.dropReplyTo(req.ID.Hex())
	ticket := placed(t, f, req)
	require.True(t, ticket.MayArrive())

	p.dropReplyTo(first.req.ID.Hex())
	ctx, giveUp := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = first.Wait(ctx)
	}()
	backendtest.Eventually(t, "a later request is in doubt", first.MayArrive)
	giveUp()
	<-ended
	for _, x := range []*fairTicket{first, ticket} {
		require.NoError(t, x.Withdraw(t.Context()))
		require.NoError(t, x.Withdraw(t.Context()), "it may be called again")
	}
	require.NoError(t, fairOf(backendOn(t, direct)).Release(t.Context(), hold))
}
