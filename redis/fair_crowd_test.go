package redislock

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
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

// fairLockers are Lockers on the server, opened by its URL.
func fairLockers(t testing.TB, s *servertest.Server, n int) []lock.Locker {
	t.Helper()
	lockers := make([]lock.Locker, n)
	for i := range lockers {
		l, err := lock.Open(t.Context(), s.URL()+"?fair=true", nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		lockers[i] = l
	}
	return lockers
}

// queued waits for so many places of the key, and for the channels of their
// backends.
func queued(t testing.TB, c *goredis.Client, key string, places int) {
	t.Helper()
	backendtest.Eventually(t, "everybody has a place and listens", func() bool {
		return c.ZCard(t.Context(), namesOf(defaultPrefix, key).queue()).Val() == int64(places) &&
			len(c.PubSubChannels(t.Context(), defaultPrefix+"w:*").Val()) == places
	})
}

// keptAlive is how many times the places may have been asked for by their timers, and by
// those of waiters behind a place that a busy machine let end.
func keptAlive(places int, since time.Time) int {
	return 2 * places * (2 + int(time.Since(since)/(placeLife/4)))
}

// A hand-over is a release, the question of the one whose turn it is, and the place
// of the next caller of that Locker, whatever the number of those who wait.
func TestFairCommandsPerHandOver(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	c := redistest.Client(t, server)
	const perHandOver, lockers = 3, 4
	for _, waiters := range []int{10, 500} {
		t.Run(fmt.Sprintf("%d waiters", waiters), func(t *testing.T) {
			key := backendtest.UniqueKey(t)
			all := fairLockers(t, server, lockers)
			lease, err := all[0].Acquire(t.Context(), key)
			require.NoError(t, err)
			var served sync.WaitGroup
			for i := range waiters {
				served.Go(func() {
					got, err := all[i%lockers].Acquire(t.Context(), key)
					if assert.NoError(t, err) {
						assert.NoError(t, got.Release(t.Context()))
					}
				})
			}
			queued(t, c, key, lockers)
			before, start := redistest.ScriptCalls(t, c), time.Now()
			require.NoError(t, lease.Release(t.Context()))
			served.Wait()
			calls := redistest.ScriptCalls(t, c) - before
			t.Logf("%.2f scripts per hand-over", float64(calls)/float64(waiters))
			require.LessOrEqual(t, calls, perHandOver*waiters+keptAlive(lockers, start))
		})
	}
}

// A release is told to one of many clients, and only that one asks.
func TestFairReleaseWakesOneClient(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	c := redistest.Client(t, server)
	const clients = 60
	key := backendtest.UniqueKey(t)
	f := fairOf(backendOn(t, redistest.Client(t, server)))
	hold, _ := backendtest.Granted(t, f, redistest.Brief(key, time.Minute))
	var served sync.WaitGroup
	for i := range clients {
		g := fairOf(backendOn(t, redistest.Client(t, server)))
		req := redistest.Brief(key, time.Minute) // all places are taken meanwhile
		ticket := placed(t, g, req)
		served.Go(func() {
			_, err := ticket.Wait(t.Context())
			if assert.NoError(t, err, "client %d", i) {
				assert.NoError(t, g.Release(t.Context(), backend.HoldOf(req)))
			}
		})
	}
	queued(t, c, key, clients)
	before, start := redistest.ScriptCalls(t, c), time.Now()
	require.NoError(t, f.Release(t.Context(), hold))
	served.Wait()
	calls := redistest.ScriptCalls(t, c) - before
	require.LessOrEqual(t, calls, 2*clients+1+keptAlive(clients, start))
}

// The fair share of a waiter is its turn after everybody else's. Counted in turns, no
// wait is longer than three of them; a caller that the machine holds up before it waits
// counts the turns of others too. Where turns go to anybody, some waits are longer.
func TestFairLongestWait(t *testing.T) {
	t.Parallel()
	const lockers, goroutines, rounds = 4, 8, 6
	key := backendtest.UniqueKey(t)
	var turns, longest atomic.Int64
	var all sync.WaitGroup
	for _, l := range fairLockers(t, servertest.SharedRedis(t), lockers) {
		for range goroutines {
			all.Go(func() {
				for range rounds {
					asked := turns.Load()
					lease, err := l.Acquire(t.Context(), key)
					if !assert.NoError(t, err) {
						return
					}
					waited := turns.Add(1) - asked
					for {
						known := longest.Load()
						if waited <= known || longest.CompareAndSwap(known, waited) {
							break
						}
					}
					assert.NoError(t, lease.Release(t.Context()))
				}
			})
		}
	}
	all.Wait()
	t.Logf("%d turns, a fair share is %d", longest.Load(), lockers*goroutines)
	require.LessOrEqual(t, longest.Load(), int64(3*lockers*goroutines))
}

// Waiters whose subscription is killed again and again are served, in their order.
func TestFairBrokenSubscription(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	c := redistest.Client(t, server)
	const clients = 8
	key := backendtest.UniqueKey(t)
	f := fairOf(backendOn(t, c))
	hold, _ := backendtest.Granted(t, f, redistest.Request(key))
	turns := make(chan turn, clients)
	holds := make([]backend.Hold, clients)
	for i := range clients {
		req := redistest.Request(key)
		holds[i] = backend.HoldOf(req)
		ticket := placed(t, fairOf(backendOn(t, redistest.Client(t, server))), req)
		go func() {
			g, err := ticket.Wait(t.Context())
			turns <- turn{i, g, err}
		}()
	}
	for i := range clients {
		queued(t, c, key, clients-i)
		require.NoError(t, c.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err())
		require.NoError(t, f.Release(t.Context(), hold))
		got := <-turns
		require.NoError(t, got.err)
		require.Equal(t, i, got.who)
		hold = holds[i]
	}
	require.NoError(t, f.Release(t.Context(), hold))
}

// Dead waiters at every position delay those who live by 1.5 s, together. One after the
// other, they would by a second for each of those who live.
func TestFairDeadWaitersEverywhere(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	key := backendtest.UniqueKey(t)
	f := fairOf(b)
	hold, _ := backendtest.Granted(t, f, redistest.Request(key))
	const waiters, living = 48, 12
	var order []int
	turns := make(chan turn, waiters)
	holds := make([]backend.Hold, waiters)
	for i := range waiters {
		req := redistest.Request(key)
		holds[i] = backend.HoldOf(req)
		ticket := placed(t, fairOf(b), req)
		if i%4 != 2 {
			continue // dead: three before each that lives
		}
		order = append(order, i)
		go func() {
			g, err := ticket.Wait(t.Context())
			turns <- turn{i, g, err}
		}()
	}
	longest := heldUp(t, c)
	released := time.Now()
	require.NoError(t, f.Release(t.Context(), hold))
	for _, i := range order {
		got := <-turns
		require.NoError(t, got.err)
		if d := longest(); got.who != i && d > placeLife/3 {
			t.Skipf("inconclusive: requests were held up for %s, so that a waiter that lives may have lost its place", d)
		}
		require.Equal(t, i, got.who)
		require.NoError(t, f.Release(t.Context(), holds[i]))
	}
	require.Len(t, order, living)
	assert.Less(t, time.Since(released), (living-2)*placeLife, "1.5 s, and a busy machine")
	backendtest.Eventually(t, "the dead at the end go too", func() bool {
		n := namesOf(defaultPrefix, key)
		return c.Exists(t.Context(), n.queue(), n.lives()).Val() == 0
	})
}

// heldUp asks the server all the time until the test is over. It returns what tells for how
// long there was no answer, at most.
func heldUp(t *testing.T, c *goredis.Client) func() time.Duration {
	var longest atomic.Int64
	go func() {
		for last := time.Now(); t.Context().Err() == nil; time.Sleep(5 * time.Millisecond) {
			_ = c.Ping(t.Context()).Err()
			longest.Store(max(longest.Load(), int64(time.Since(last))))
			last = time.Now()
		}
	}()
	return func() time.Duration { return time.Duration(longest.Load()) }
}

// A clock that was set back leaves places that seem to last for long. Their waiters
// come again, and the dead among them stand in nobody's way.
func TestFairClockSetBack(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	key := backendtest.UniqueKey(t)
	n := namesOf(defaultPrefix, key)
	f := fairOf(b)
	hold, _ := backendtest.Granted(t, f, redistest.Request(key))
	dead, alive := placed(t, f, redistest.Request(key)), placed(t, f, redistest.Request(key))
	hour := float64(time.Hour.Milliseconds())
	for _, ticket := range []*fairTicket{dead, alive} {
		require.NoError(t, c.ZIncrBy(t.Context(), n.lives(), hour, ticket.place).Err())
		require.NoError(t, c.ZIncrBy(t.Context(), n.queue(), 1000*hour, ticket.place).Err())
	}
	require.NoError(t, f.Release(t.Context(), hold))
	_, err := alive.Wait(backendtest.Short(t, ttl))
	require.NoError(t, err)
	rec, err := f.Inspect(t.Context(), key)
	require.NoError(t, err)
	require.Zero(t, rec.Waiters)
	require.NoError(t, f.Release(t.Context(), backend.HoldOf(alive.req)))
}

// An owner that holds the key enters again past everybody who waits, and its place
// goes when it is let in.
func TestFairOwnerEntersPastTheQueue(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	key := backendtest.UniqueKey(t)
	f := fairOf(b)
	first, one := backendtest.Granted(t, f, ownedRequest(key, "me", ttl))
	other := placed(t, f, redistest.Request(key))
	second, two := backendtest.Granted(t, f, ownedRequest(key, "me", ttl))
	require.Equal(t, one.Token, two.Token)
	third := ownedRequest(key, "me", ttl)
	ticket, err := fairOf(b).Enqueue(t.Context(), third)
	require.NoError(t, err)
	g, err := ticket.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, g.Holds)
	require.NoError(t, other.ask(t.Context(), other.arrival)) // or its place might have ended
	require.Equal(t, []string{other.place}, c.ZRange(t.Context(), namesOf(defaultPrefix, key).queue(), 0, -1).Val())
	for _, hold := range []backend.Hold{first, second, backend.HoldOf(third)} {
		_, err := f.Try(t.Context(), redistest.Request(key))
		require.ErrorIs(t, err, backend.ErrHeld)
		require.NoError(t, other.ask(t.Context(), other.arrival))
		require.NoError(t, f.Release(t.Context(), hold))
	}
	_, err = f.Try(t.Context(), ownedRequest(key, "me", ttl))
	require.ErrorIs(t, err, backend.ErrHeld, "no longer the holder, and somebody waits")
	_, err = other.Wait(t.Context())
	require.NoError(t, err)
}

// Inspect and List count the waiters, without those that have died.
func TestFairInspectCountsWaiters(t *testing.T) {
	t.Parallel()
	b, _ := shared(t)
	key := backendtest.UniqueKey(t)
	f := fairOf(b)
	hold, _ := backendtest.Granted(t, f, redistest.Request(key))
	waiters := func() int {
		rec, err := f.Inspect(t.Context(), key)
		require.NoError(t, err)
		return rec.Waiters
	}
	require.Zero(t, waiters())
	waits := func() (ticket *fairTicket, die func()) {
		ticket = placed(t, f, redistest.Request(key))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := ticket.Wait(ctx)
			ended <- err
		}()
		return ticket, func() {
			cancel()
			require.ErrorIs(t, <-ended, context.Canceled)
		}
	}
	one, end := waits()
	dead, die := waits() // behind the other, so that nothing drops its place
	require.Equal(t, 2, waiters())
	found := 0
	require.NoError(t, f.List(t.Context(), key, func(rec backend.Record) bool { found = rec.Waiters; return true }))
	require.Equal(t, 2, found)
	die()
	backendtest.Eventually(t, "the dead one is no longer counted", func() bool { return waiters() == 1 })
	require.NoError(t, dead.Withdraw(t.Context()))
	require.Equal(t, 1, waiters())
	end()
	require.NoError(t, one.Withdraw(t.Context()))
	require.Zero(t, waiters())
	require.NoError(t, f.Release(t.Context(), hold))
}
