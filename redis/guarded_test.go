package redislock

import (
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	memlock "github.com/mortiselock/lock/memory"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

// guarding is a held lease, and a key of the server that its guarded scripts may use.
func guarding(t testing.TB) (client *goredis.Client, l *lock.Client, lease lock.Lease, name string) {
	t.Helper()
	var err error
	client = redistest.Client(t, servertest.SharedRedis(t))
	l, err = New(t.Context(), client, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	lease, err = l.TryAcquire(t.Context(), backendtest.UniqueKey(t))
	require.NoError(t, err)
	name, err = GuardedKey(lease, "value")
	require.NoError(t, err)
	return client, l, lease, name
}

func TestGuardedScript(t *testing.T) {
	t.Parallel()
	client, l, lease, name := guarding(t)

	add := NewGuardedScript("local n = redis.call('INCRBY', KEYS[1], ARGV[1])\nreturn {n, #KEYS, #ARGV, KEYS[2]}")
	for want := int64(3); want <= 6; want += 3 {
		got, err := add.Run(t.Context(), lease, []string{name, name + "2"}, 3)
		require.NoError(t, err)
		assert.Equal(t, []any{want, int64(2), int64(1), name + "2"}, got)
	}

	// Another owner's hold on the same key is not ours.
	require.NoError(t, client.Del(t.Context(), namesOf(defaultPrefix, lease.Key()).record()).Err())
	_, err := add.Run(t.Context(), lease, []string{name}, 3)
	require.ErrorIs(t, err, lock.ErrNotHeld)
	other, err := l.TryAcquire(t.Context(), lease.Key())
	require.NoError(t, err)
	_, err = add.Run(t.Context(), lease, []string{name}, 3)
	require.ErrorIs(t, err, lock.ErrNotHeld)
	got, err := add.Run(t.Context(), other, []string{name}, 3)
	require.NoError(t, err)
	assert.Equal(t, int64(9), got.([]any)[0], "a guarded write without a hold took effect")

	// What the script itself says.
	nothing, err := NewGuardedScript("return false").Run(t.Context(), other, nil)
	require.NoError(t, err)
	assert.Nil(t, nothing)
	_, err = NewGuardedScript("return redis.error_reply('OURS refused')").Run(t.Context(), other, nil)
	require.ErrorContains(t, err, "OURS refused")
	require.NotErrorIs(t, err, lock.ErrNotHeld)
	require.NotErrorIs(t, err, lock.ErrOutcomeUnknown)
	require.NoError(t, client.ScriptFlush(t.Context()).Err())
	_, err = GuardedSet.Run(t.Context(), other, []string{name}, "x")
	require.NoError(t, err)
	require.NoError(t, other.Release(t.Context()))
	_, err = GuardedSet.Run(t.Context(), other, []string{name}, "y")
	require.ErrorIs(t, err, lock.ErrNotHeld)
	assert.Equal(t, "x", client.Get(t.Context(), name).Val())
}

// TestGuardedScriptErrors: what goes wrong in the caller's script is told as the
// script's own, since what it wrote before stays.
func TestGuardedScriptErrors(t *testing.T) {
	t.Parallel()
	client, _, lease, name := guarding(t)
	write := "redis.call('INCR', KEYS[1]) "
	for text, want := range map[string]string{
		"return redis.call('LPUSH', KEYS[1], 'x')":                   "WRONGTYPE",
		"return redis.pcall('LPUSH', KEYS[1], 'x')":                  "WRONGTYPE",
		"return redis.error_reply('READONLY mine')":                  "READONLY mine",
		"return redis.error_reply('MORTISE not held')":               "MORTISE not held",
		"return redis.error_reply('NOSCRIPT mine')":                  "NOSCRIPT mine",
		"return {err = 'LOADING mine'}":                              "LOADING mine",
		"error('OOM mine')":                                          "OOM mine",
		"error({code = 1})":                                          "table",
		"return nil .. 'x' -- a comment is no end":                   "concatenate",
		"return redis.call('NOSUCHCOMMAND')":                         "nown Redis command",
		"local function f() return redis.call('GET') end return f()": "number of args",
	} {
		before, _ := client.Get(t.Context(), name).Int()
		_, err := NewGuardedScript(write+text).Run(t.Context(), lease, []string{name})
		require.ErrorContains(t, err, want, text)
		require.NotContains(t, err.Error(), namesOf(defaultPrefix, lease.Key()).record(), text)
		for _, sentinel := range []error{lock.ErrPermanent, lock.ErrUnavailable, lock.ErrNotHeld, lock.ErrOutcomeUnknown} {
			require.NotErrorIs(t, err, sentinel, text)
		}
		var refusal goredis.Error
		require.ErrorAs(t, err, &refusal, text)
		after, err := client.Get(t.Context(), name).Int()
		require.NoError(t, err)
		require.Equal(t, before+1, after, "it ran once; %s", text)
	}
	// What can't be compiled was not run.
	_, err := NewGuardedScript(write+"return ((").Run(t.Context(), lease, []string{name})
	require.ErrorIs(t, err, lock.ErrPermanent)
	_, err = GuardedSet.Run(t.Context(), lease, []string{name}, struct{ N int }{1})
	require.ErrorIs(t, err, lock.ErrInvalid)
	require.NotErrorIs(t, err, lock.ErrOutcomeUnknown)
	got, err := NewGuardedScript("return {ok = 'FINE'}").Run(t.Context(), lease, nil)
	require.NoError(t, err)
	require.Equal(t, "FINE", got)
}

func TestGuardedScriptOfAnotherBackend(t *testing.T) {
	t.Parallel()
	l, err := memlock.New(t.Context(), &memlock.Options{Store: memlock.NewStore(backend.RuntimeClock())})
	require.NoError(t, err)
	defer l.Close()
	lease, err := l.TryAcquire(t.Context(), "k", lock.WithTTL(time.Minute))
	require.NoError(t, err)
	_, err = GuardedSet.Run(t.Context(), lease, []string{"x"}, "y")
	require.ErrorIs(t, err, lock.ErrUnsupported)
	_, err = GuardedKey(lease, "x")
	require.ErrorIs(t, err, lock.ErrUnsupported)
	_, err = GuardedSet.Run(t.Context(), nil, nil)
	require.ErrorIs(t, err, lock.ErrInvalid)
}
