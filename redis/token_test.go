package redislock

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

// maxToken is the last number below 2^53.
const maxToken = 1<<53 - 1

func TestTokensRiseOverEverything(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, servertest.WithControl(), servertest.WithPersistence())
	c := redistest.Client(t, server)
	b := backendOn(t, c)
	key := backendtest.UniqueKey(t)
	n := namesOf(defaultPrefix, key)
	var last uint64
	next := func(what string) {
		t.Helper()
		req := redistest.Request(key)
		g, err := b.Try(t.Context(), req)
		require.NoError(t, err, what)
		require.Greater(t, g.Token, last, what)
		last = g.Token
		value, err := c.Get(t.Context(), n.counter()).Uint64()
		require.NoError(t, err)
		require.Equal(t, last, value, "the counter is the token, digit by digit")
		require.NoError(t, b.Release(t.Context(), backend.HoldOf(req)))
	}
	next("first")
	for range 100 {
		next("release")
	}
	backendtest.Granted(t, b, redistest.Request(key))
	require.NoError(t, c.Del(t.Context(), n.record()).Err())
	next("the record was removed")
	require.NoError(t, c.Del(t.Context(), n.counter()).Err())
	next("the counter was removed")
	require.NoError(t, c.FlushAll(t.Context()).Err())
	next("everything was removed")
	require.NoError(t, c.Set(t.Context(), n.counter(), strconv.FormatUint(last+1_000_000_000, 10), 0).Err())
	last += 1_000_000_000
	next("the clock was set back, or another server's counter was restored")
	server.Restart(t, true)
	next("the server was killed and kept its data")
	require.NoError(t, c.Del(t.Context(), n.counter()).Err())
	last = 0 // the counter was ahead of the clock, and only the clock is left
	next("the clock")
	server.Restart(t, false)
	next("the server lost its data")
}

// TestTimeOfTheServer: TIME gives the microseconds without leading zeros, on some
// servers as a number.
func TestTimeOfTheServer(t *testing.T) {
	t.Parallel()
	c := redistest.Client(t, servertest.SharedRedis(t))
	for _, micros := range []int{0, 9, 99, 99_999, 100_000, 999_999} {
		for _, form := range []string{"{'1700000000', '%d'}", "{1700000000, %d}"} {
			at := func(text string) string {
				require.Contains(t, text, "redis.call('TIME')")
				return strings.ReplaceAll(text, "redis.call('TIME')", fmt.Sprintf(form, micros))
			}
			n := namesOf(defaultPrefix, backendtest.UniqueKey(t))
			token, since := strconv.Itoa(1_700_000_000_000_000+micros), strconv.Itoa(1_700_000_000_000+micros/1000)
			keys := []string{n.record(), n.counter() + n.record()}
			id, next := backend.NewID().Hex(), backend.NewID().Hex()
			granted, err := c.Eval(t.Context(), at(tryScript.Text), keys, id, 60_000, "-|{}").Result()
			require.NoError(t, err)
			require.Equal(t, token, granted)
			record, err := c.Get(t.Context(), n.record()).Result()
			require.NoError(t, err)
			require.Equal(t, "M1|"+id+":"+since+"+60000|"+token+"|"+since+"|-|{}", record)
			require.NoError(t, c.Del(t.Context(), keys[1]).Err())
			granted, err = c.Eval(t.Context(), at(handOverScript.Text), keys, id, next, 60_000, "-|{}").Result()
			require.NoError(t, err)
			require.Equal(t, token, granted)
			record, err = c.Get(t.Context(), n.record()).Result()
			require.NoError(t, err)
			require.Equal(t, "M1|"+next+":"+since+"+60000|"+token+"|"+since+"|-|{}", record)
			require.NoError(t, c.Del(t.Context(), keys...).Err())
		}
	}
}

func TestTokensRunOutAndNeverRepeat(t *testing.T) {
	t.Parallel()
	c := redistest.Client(t, servertest.Redis(t))
	b := backendOn(t, c)
	key := backendtest.UniqueKey(t)
	n := namesOf(defaultPrefix, key)
	require.NoError(t, c.Set(t.Context(), n.counter(), maxToken-1, 0).Err())
	hold, g := backendtest.Granted(t, b, redistest.Request(key))
	require.Equal(t, uint64(maxToken), g.Token)
	require.NoError(t, b.Release(t.Context(), hold))
	for _, counter := range []string{strconv.Itoa(maxToken), strconv.Itoa(maxToken + 1), "18446744073709551615", "99999999999999999999999999"} {
		require.NoError(t, c.Set(t.Context(), n.counter(), counter, 0).Err())
		_, err := b.Try(t.Context(), redistest.Request(key))
		require.ErrorIs(t, err, backend.ErrPermanent)
		require.ErrorContains(t, err, n.counter())
		require.Equal(t, counter, c.Get(t.Context(), n.counter()).Val())
		require.Zero(t, c.Exists(t.Context(), n.record()).Val())
	}
}

func TestCountersDoNotGrowWithTheKeys(t *testing.T) {
	t.Parallel()
	c := redistest.Client(t, servertest.Redis(t))
	b := backendOn(t, c)
	for range 600 {
		hold, _ := backendtest.Granted(t, b, redistest.Request(backendtest.UniqueKey(t)))
		require.NoError(t, b.Release(t.Context(), hold))
	}
	size, err := c.DBSize(t.Context()).Result()
	require.NoError(t, err)
	require.LessOrEqual(t, size, int64(256))
	for _, key := range c.Keys(t.Context(), "*").Val() {
		require.EqualValues(t, -1, c.TTL(t.Context(), key).Val(), "%s has no expiry", key)
	}
}

// Whatever its clock, a server that remembers the counter never grants less.
func TestCounterOfAnotherFormIsLeftAlone(t *testing.T) {
	t.Parallel()
	c := redistest.Client(t, servertest.Redis(t))
	b := backendOn(t, c)
	key := backendtest.UniqueKey(t)
	n := namesOf(defaultPrefix, key)
	require.NoError(t, c.Set(t.Context(), n.counter(), "not a number", 0).Err())
	_, err := b.Try(t.Context(), redistest.Request(key))
	require.ErrorIs(t, err, backend.ErrPermanent)
	require.ErrorContains(t, err, n.counter())
	require.Equal(t, "not a number", c.Get(t.Context(), n.counter()).Val())

	require.NoError(t, c.Del(t.Context(), n.counter()).Err())
	require.NoError(t, c.RPush(t.Context(), n.counter(), "x").Err())
	_, err = b.Try(t.Context(), redistest.Request(key))
	require.ErrorIs(t, err, backend.ErrPermanent)
	require.ErrorContains(t, err, "WRONGTYPE")
	require.Zero(t, c.Exists(t.Context(), n.record()).Val())
}
