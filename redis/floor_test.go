package redislock

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

// floored is what tests of the floor need of a backend.
type floored interface {
	backend.Backend
	backend.Inspector
	backend.FloorRaiser
	backend.TokenTeller
}

func openFloored(t *testing.T, url string) floored {
	t.Helper()
	b, err := backend.DefaultMux.Open(t.Context(), url, backend.OpenConfig{TTL: ttl})
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() })
	return b.(floored)
}

// once is the token of a grant that is released again.
func once(t *testing.T, b backend.Backend, key string) uint64 {
	t.Helper()
	return backendtest.TokenOf(t, b, redistest.Request(key), false)
}

// testFloor raises the floor through one client, and uses keys of every bucket through another.
func testFloor(t *testing.T, url string) {
	a, b := openFloored(t, url), openFloored(t, url)
	last, err := a.LastToken(t.Context())
	require.NoError(t, err)
	assert.Zero(t, last, "nothing was granted yet")
	held := redistest.Brief("held", time.Hour)
	_, granted := backendtest.Granted(t, b, held)
	last, err = a.LastToken(t.Context())
	require.NoError(t, err)
	assert.Equal(t, granted.Token, last)

	above := uint64(time.Now().Add(time.Hour).UnixMicro())
	require.NoError(t, a.RaiseFloor(t.Context(), above))
	last, err = b.LastToken(t.Context())
	require.NoError(t, err)
	assert.Equal(t, above, last)
	seen := map[byte]bool{}
	for n := 0; len(seen) < 256; n++ {
		if key := fmt.Sprint("k", n); !seen[bucketOf(key)] {
			seen[bucketOf(key)] = true
			require.Greater(t, once(t, b, key), above, key)
		}
	}
	require.NoError(t, a.RaiseFloor(t.Context(), above-1), "it is as high already")
	require.Greater(t, once(t, b, "k0"), above+1)

	rec, err := a.Inspect(t.Context(), "held")
	require.NoError(t, err)
	assert.Equal(t, granted.Token, rec.Token)
	hold := backend.HoldOf(held)
	hold.Token = granted.Token
	_, err = b.Renew(t.Context(), hold)
	require.NoError(t, err)
	require.NoError(t, b.Release(t.Context(), hold))
	require.Greater(t, once(t, b, "held"), above)
	require.ErrorIs(t, a.RaiseFloor(t.Context(), largestToken), backend.ErrInvalid)
	require.NoError(t, a.RaiseFloor(t.Context(), largestToken-1))
	assert.EqualValues(t, largestToken, once(t, b, "k0"), "there is one left")
}

func TestFloorOfEveryBucket(t *testing.T) {
	t.Parallel()
	server := servertest.SharedRedis(t)
	for name, params := range map[string]string{"plain": "", "fair": "&fair=true"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testFloor(t, server.URL()+"?prefix=floor"+backend.NewID().Hex()+params)
		})
	}
}

func testClusterFloor(t *testing.T, addrs []string) {
	testFloor(t, "redis://"+strings.Join(addrs, ",")+"?cluster=true&prefix=floor")
}

// A key that a clock was ahead for counts on from there, and its counter is found after it
// was released, also by a server that has forgotten the script.
func TestLastTokenOfACounterAheadOfTheClock(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	c := redistest.Client(t, server)
	b := backendOn(t, c)
	first := once(t, b, "k")
	require.NoError(t, c.IncrBy(t.Context(), namesOf(defaultPrefix, "k").counter(), 3_600_000_000).Err())
	token := once(t, b, "k")
	require.Greater(t, token, first+3_600_000_000-1)
	last, err := b.LastToken(t.Context())
	require.NoError(t, err)
	assert.Equal(t, token, last)
	require.NoError(t, c.ScriptFlush(t.Context()).Err())
	last, err = b.LastToken(t.Context())
	require.NoError(t, err)
	assert.Equal(t, token, last)
}

// What is no counter is named, and left as it is; the others are raised.
func TestFloorBesideWhatIsNoCounter(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	c := redistest.Client(t, server)
	b := backendOn(t, c)
	n := namesOf(defaultPrefix, "k")
	for _, write := range []func() error{
		func() error { return c.Set(t.Context(), n.counter(), "1.5", 0).Err() },
		func() error { return c.Set(t.Context(), n.counter(), "", 0).Err() },
		func() error { return c.LPush(t.Context(), n.counter(), "x").Err() },
	} {
		require.NoError(t, c.Del(t.Context(), n.counter()).Err())
		require.NoError(t, write())
		before := c.Dump(t.Context(), n.counter()).Val()
		err := b.RaiseFloor(t.Context(), 1000)
		require.ErrorIs(t, err, backend.ErrPermanent)
		assert.ErrorContains(t, err, n.counter())
		_, err = b.LastToken(t.Context())
		require.ErrorIs(t, err, backend.ErrPermanent)
		assert.Equal(t, before, c.Dump(t.Context(), n.counter()).Val())
	}
}
