package redislock

import (
	"context"
	"errors"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/failure"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/redistest"
	"github.com/mortiselock/lock/redis/internal/wire"
)

// behindProxy is a backend whose client has go-redis' own retries on, and the
// proxy in front of its server.
func behindProxy(t *testing.T) (*redisBackend, *goredis.Client, *proxy) {
	t.Helper()
	server := servertest.Redis(t)
	p := newProxy(t, server.Addr())
	c := goredis.NewClient(&goredis.Options{Addr: p.addr, MaxRetries: 3})
	t.Cleanup(func() { _ = c.Close() })
	b := backendOn(t, c)
	// The server knows the scripts, so that a request is one message.
	for range 2 {
		hold, _ := backendtest.Granted(t, b, redistest.Request(backendtest.UniqueKey(t)))
		_, err := b.Renew(t.Context(), hold)
		require.NoError(t, err)
		require.NoError(t, b.Release(t.Context(), hold))
	}
	return b, redistest.Client(t, server), p
}

func TestLostReplyToTry(t *testing.T) {
	t.Parallel()
	b, direct, p := behindProxy(t)
	for _, owner := range []string{"", "alice"} {
		key := backendtest.UniqueKey(t)
		counter := namesOf(defaultPrefix, key).counter()
		req := ownedRequest(key, owner, ttl)
		p.dropReplyTo(req.ID.Hex())
		before := b.clock.Now()
		hold, g := backendtest.Granted(t, b, req)
		require.Equal(t, 1, g.Holds)
		require.False(t, g.Sent.Before(before))
		last, err := direct.Get(t.Context(), counter).Uint64()
		require.NoError(t, err)
		require.Equal(t, last, g.Token, "one token was spent")
		rec, err := b.Inspect(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, 1, rec.Holds)
		require.Equal(t, g.Token, rec.Token)
		require.NoError(t, b.Release(t.Context(), hold))
		_, err = b.Inspect(t.Context(), key)
		require.ErrorIs(t, err, backend.ErrNotHeld)
	}
	require.EqualValues(t, 2, p.drops.Load())
}

func TestLostReplyToRenewAndRelease(t *testing.T) {
	t.Parallel()
	b, _, p := behindProxy(t)
	key := backendtest.UniqueKey(t)
	hold, _ := backendtest.Granted(t, b, redistest.Request(key))
	p.dropReplyTo(hold.ID.Hex())
	_, err := b.Renew(t.Context(), hold)
	require.NoError(t, err)

	p.dropReplyTo(hold.ID.Hex())
	require.NoError(t, b.Release(t.Context(), hold), "the first attempt has removed it")
	require.ErrorIs(t, b.Release(t.Context(), hold), backend.ErrNotHeld)

	// The repeat of a release whose reply was lost does not touch the next holder.
	hold, _ = backendtest.Granted(t, b, redistest.Request(key))
	next := redistest.Request(key)
	p.dropReplyTo(hold.ID.Hex())
	require.NoError(t, b.Release(t.Context(), hold))
	backendtest.Granted(t, b, next)
	require.ErrorIs(t, b.Release(t.Context(), hold), backend.ErrNotHeld)
	_, err = b.Renew(t.Context(), backend.HoldOf(next))
	require.NoError(t, err)
	require.EqualValues(t, 3, p.drops.Load())
}

// A refusal after a lost reply does not prove that nothing happened.
func TestRefusalAfterLostReplyIsUnknown(t *testing.T) {
	t.Parallel()
	b, direct, p := behindProxy(t)
	req := redistest.Request(backendtest.UniqueKey(t))
	p.dropReplyTo(req.ID.Hex())
	p.stop()
	_, err := b.Try(t.Context(), req)
	require.ErrorContains(t, err, "connection refused")
	require.EqualValues(t, 1, p.drops.Load())
	for _, sentinel := range []error{backend.ErrUnavailable, backend.ErrPermanent, backend.ErrHeld, backend.ErrNotHeld} {
		require.NotErrorIs(t, err, sentinel)
	}
	require.NotContains(t, err.Error(), req.ID.Hex())
	other := backendOn(t, direct)
	rec, err := other.Inspect(t.Context(), req.Key)
	require.NoError(t, err, "it was applied")
	require.Equal(t, 1, rec.Holds)
	_, err = b.Try(t.Context(), redistest.Request(req.Key))
	require.ErrorIs(t, err, backend.ErrUnavailable, "nothing was sent")
}

// go-redis must leave repeats to this package: its own would hide lost replies.
func TestClientDoesNotRepeatByItself(t *testing.T) {
	t.Parallel()
	b, direct, p := behindProxy(t)
	key := backendtest.UniqueKey(t)
	n := namesOf(defaultPrefix, key)
	counter := "count:" + key
	cmd := keyed(t.Context(), []any{"eval", "return redis.call('INCR', KEYS[1])", 2, counter, n.counter(), "marker"})
	p.dropReplyTo("marker")
	err := b.client.Process(t.Context(), cmd)
	require.Error(t, err)
	require.True(t, wire.ConnectionBroke(err), "%v", err)
	require.Equal(t, "1", direct.Get(t.Context(), counter).Val())

	pipe := b.client.Pipeline()
	cmd = keyed(t.Context(), []any{"eval", "return redis.call('INCR', KEYS[1])", 2, counter, n.counter(), "marker"})
	_ = pipe.Process(t.Context(), cmd)
	p.dropReplyTo("marker")
	_, err = pipe.Exec(t.Context())
	require.Error(t, err)
	require.Equal(t, "2", direct.Get(t.Context(), counter).Val())
}

func TestBrokenConnectionsOfThePool(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, servertest.WithControl(), servertest.WithPersistence())
	b := backendOn(t, redistest.Client(t, server))
	key := backendtest.UniqueKey(t)
	hold, _ := backendtest.Granted(t, b, redistest.Request(key))
	server.Restart(t, true)
	_, err := b.Renew(t.Context(), hold)
	require.NoError(t, err, "connections that the restart has closed are replaced")
	require.True(t, backend.Survives(b.Guarantees().HoldsSurvive, backend.FaultRestart))
	server.Restart(t, false)
	_, err = b.Renew(t.Context(), hold)
	require.ErrorIs(t, err, backend.ErrNotHeld)
}

func TestRenewBatch(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	const (
		count = maxBatch + 20
		long  = time.Minute // a slow machine takes the last hold long after the first
	)
	holds := make([]backend.Hold, count)
	expiry := make([]time.Duration, count)
	for i := range holds {
		holds[i], _ = backendtest.Granted(t, b, redistest.Brief(backendtest.UniqueKey(t), long))
		_, expiry[i] = raw(t, c, holds[i].Key)
	}
	lost := map[int]bool{0: true, 7: true, maxBatch - 1: true, maxBatch: true, count - 1: true}
	for i := range lost {
		require.NoError(t, b.Release(t.Context(), holds[i]))
	}
	foreign := 3
	require.NoError(t, c.Set(t.Context(), namesOf(defaultPrefix, holds[foreign].Key).record(), "x", 0).Err())

	before := b.clock.Now()
	got := b.RenewBatch(t.Context(), holds)
	after := b.clock.Now()
	require.Len(t, got, count)
	for i, r := range got {
		switch {
		case lost[i]:
			require.ErrorIs(t, r.Err, backend.ErrNotHeld)
			require.Zero(t, r.Validity)
		case i == foreign:
			require.ErrorIs(t, r.Err, backend.ErrPermanent)
		default:
			require.NoError(t, r.Err)
			require.Equal(t, backend.ValidFor(long), r.Validity.For)
			require.False(t, r.Validity.Sent.Before(before))
			require.False(t, after.Before(r.Validity.Sent))
			_, now := raw(t, c, holds[i].Key)
			require.GreaterOrEqual(t, now, expiry[i])
		}
	}
	require.Empty(t, b.RenewBatch(t.Context(), nil))
}

func TestBatchAfterTheServerForgotTheScript(t *testing.T) {
	t.Parallel()
	c := redistest.Client(t, servertest.Redis(t))
	b := backendOn(t, c)
	var holds []backend.Hold
	for range 50 {
		hold, _ := backendtest.Granted(t, b, redistest.Request(backendtest.UniqueKey(t)))
		holds = append(holds, hold)
	}
	require.NoError(t, b.Release(t.Context(), holds[10]))
	require.NoError(t, c.ScriptFlush(t.Context()).Err())
	for i, r := range b.RenewBatch(t.Context(), holds) {
		if i == 10 {
			require.ErrorIs(t, r.Err, backend.ErrNotHeld)
		} else {
			require.NoError(t, r.Err)
		}
	}
}

// Cancelled requests leave at most what names itself.
func TestCancelledTryCanBeCleanedUp(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	for i := range 200 {
		key := backendtest.UniqueKey(t)
		req := redistest.Request(key)
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*5*time.Microsecond)
		_, err := b.Try(ctx, req)
		cancel()
		if err != nil {
			require.True(t, errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled), "%v", err)
		}
		if err := b.Release(t.Context(), backend.HoldOf(req)); err != nil {
			require.ErrorIs(t, err, backend.ErrNotHeld)
		}
		value, _ := raw(t, c, key)
		require.Empty(t, value)
	}
}

// A refusal after a broken connection proves nothing: the request that was under way
// on it may be granted later.
func TestRefusalOfARepeatIsUnknown(t *testing.T) {
	t.Parallel()
	b, direct, p := behindProxy(t)
	other := backendOn(t, direct)
	unknown := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, backend.ErrOutcomeUnknown)
		require.False(t, failure.ChangedNothing(err), "%v", err)
		require.NotErrorAs(t, err, new(*backend.HeldError))
	}
	key := backendtest.UniqueKey(t)
	hold, _ := backendtest.Granted(t, other, redistest.Request(key))
	for what, from := range map[string]backend.Backend{"usual": b, "fair": fairOf(b)} {
		_, _ = from.Try(t.Context(), redistest.Request(key)) // the server learns the script
		req := redistest.Request(key)
		p.dropReplyTo(req.ID.Hex())
		_, err := from.Try(t.Context(), req)
		unknown(err)
		require.ErrorContains(t, err, "held by", what)
	}
	mine, _ := backendtest.Granted(t, b, ownedRequest(backendtest.UniqueKey(t), "a", ttl))
	for range backend.MaxHolds - 1 {
		backendtest.Granted(t, b, ownedRequest(mine.Key, "a", ttl))
	}
	req := ownedRequest(mine.Key, "a", ttl)
	p.dropReplyTo(req.ID.Hex())
	_, err := b.Try(t.Context(), req)
	unknown(err)

	// A hand-over that is refused may be carried out later too.
	_, _ = b.HandOver(t.Context(), backend.HoldOf(redistest.Request(key)), redistest.Request(key))
	for _, from := range []backend.Hold{backend.HoldOf(redistest.Request(key)), mine} {
		to := redistest.Request(from.Key)
		p.dropReplyTo(to.ID.Hex())
		_, err = b.HandOver(t.Context(), from, to)
		unknown(err)
	}

	// A renewal never makes a hold, so that its refusal is one.
	gone := redistest.Request(key)
	p.dropReplyTo(gone.ID.Hex())
	_, err = b.Renew(t.Context(), backend.HoldOf(gone))
	require.ErrorIs(t, err, backend.ErrNotHeld)
	require.NoError(t, other.Release(t.Context(), hold))
}
