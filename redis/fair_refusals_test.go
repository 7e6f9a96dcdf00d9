package redislock

import (
	"os"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

// documentedFairRules are what the documentation has a user of the fair mode be
// permitted too.
func documentedFairRules(t *testing.T) (rules []any) {
	t.Helper()
	page, err := os.ReadFile("../docs/backends/redis.md")
	require.NoError(t, err)
	_, line, ok := strings.Cut(string(page), "with `fair=true` `")
	require.True(t, ok)
	line, _, _ = strings.Cut(line, "`")
	for _, rule := range strings.Fields(line) {
		rules = append(rules, rule)
	}
	return rules
}

// The documented rules suffice. Without the channels a waiter polls.
func TestFairPermissions(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	admin := redistest.Client(t, server)
	for name, more := range map[string][]any{"documented": nil, "mute": {"resetchannels", "-publish"}} {
		args := append([]any{"acl", "setuser", name, "on", ">pass"}, documentedRules(t)...)
		args = append(append(args, documentedFairRules(t)...), more...)
		require.NoError(t, admin.Do(t.Context(), args...).Err())
		c := goredis.NewClient(&goredis.Options{Addr: server.Addr(), Username: name, Password: "pass"})
		t.Cleanup(func() { _ = c.Close() })
		f := fairOf(backendOn(t, c))
		key := backendtest.UniqueKey(t)
		hold, g := backendtest.Granted(t, f, redistest.Request(key))
		ticket := placed(t, f, redistest.Request(key))
		given := placed(t, f, redistest.Request(key))
		rec, err := f.Inspect(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, 2, rec.Waiters)
		require.NoError(t, given.Withdraw(t.Context()))
		next := make(chan error, 1)
		go func() {
			_, err := ticket.Wait(backendtest.Short(t, ttl))
			next <- err
		}()
		require.NoError(t, f.ForceRelease(t.Context(), key, g.Token))
		require.NoError(t, <-next)
		require.ErrorIs(t, f.Release(t.Context(), hold), backend.ErrNotHeld)
		require.NoError(t, f.Release(t.Context(), backend.HoldOf(ticket.req)))
	}
}

// A full server takes no new places. Those that there are can be given up, and what
// is held is released to the first of them.
func TestFairFullMemory(t *testing.T) {
	t.Parallel()
	c := redistest.Client(t, servertest.Redis(t))
	f := fairOf(backendOn(t, c))
	key := backendtest.UniqueKey(t)
	hold, _ := backendtest.Granted(t, f, redistest.Request(key))
	one, two := placed(t, f, redistest.Request(key)), placed(t, f, redistest.Request(key))
	require.NoError(t, c.ConfigSet(t.Context(), "maxmemory", "1").Err())
	_, err := f.Enqueue(t.Context(), redistest.Request(backendtest.UniqueKey(t)))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, "OOM")
	require.NoError(t, one.Withdraw(t.Context()))
	require.NoError(t, f.Release(t.Context(), hold))
	require.NoError(t, c.ConfigSet(t.Context(), "maxmemory", "0").Err())
	_, err = two.Wait(backendtest.Short(t, ttl))
	require.NoError(t, err)
}

// What is in the queue and is no place holds nobody up, wherever it stands: it is
// dropped, as a place is that has ended.
func TestFairForeignMemberOfAQueue(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	f := fairOf(b)
	key := backendtest.UniqueKey(t)
	n := namesOf(defaultPrefix, key)
	hold, g := backendtest.Granted(t, f, redistest.Request(key))
	foreign := func(member string, score float64) {
		t.Helper()
		require.NoError(t, c.ZAdd(t.Context(), n.queue(), goredis.Z{Score: score, Member: member}).Err())
	}
	foreign("not ours", 0)
	foreign("", 0)
	ticket := placed(t, f, redistest.Request(key))
	foreign("nor this", 1)
	next := make(chan error, 1)
	go func() {
		_, err := ticket.Wait(backendtest.Short(t, ttl))
		next <- err
	}()
	_, err := f.Inspect(t.Context(), key)
	require.NoError(t, err)
	foreign("nor that", -1)
	_, err = f.Try(t.Context(), redistest.Request(key))
	require.ErrorIs(t, err, backend.ErrHeld)
	foreign("and more", -1)
	require.NoError(t, f.ForceRelease(t.Context(), key, g.Token))
	require.NoError(t, <-next)
	require.ErrorIs(t, f.Release(t.Context(), hold), backend.ErrNotHeld)
	foreign("alone", 5)
	require.NoError(t, f.Release(t.Context(), backend.HoldOf(ticket.req)))
	last, _ := backendtest.Granted(t, f, redistest.Request(key))
	require.NoError(t, f.Release(t.Context(), last))
	require.Zero(t, c.Exists(t.Context(), n.queue(), n.lives(), n.record()).Val())

	// What is no queue at all is left alone.
	require.NoError(t, c.Set(t.Context(), n.queue(), "x", time.Minute).Err())
	_, err = f.Try(t.Context(), redistest.Request(key))
	require.ErrorIs(t, err, backend.ErrPermanent)
	require.Equal(t, "x", c.Get(t.Context(), n.queue()).Val())
}
