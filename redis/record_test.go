package redislock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/redis/internal/redistest"
	"github.com/mortiselock/lock/redis/internal/wire"
)

func TestTryGrantsAndRefuses(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	key := backendtest.UniqueKey(t)
	req := redistest.Request(key)
	label := `"backup" | of 100 %, {m:00} \ ünïcode` + "\u2028"
	req.Holder = backend.Holder{Label: label, Host: "db|1", PID: 312}

	before := b.clock.Now()
	hold, g := backendtest.Granted(t, b, req)
	after := b.clock.Now()
	require.Equal(t, 1, g.Holds)
	require.False(t, g.Sent.Before(before))
	require.False(t, after.Before(g.Sent))
	require.Equal(t, backend.ValidFor(ttl), g.For)
	now := time.Now().UnixMicro()
	require.Greater(t, g.Token, uint64(now-60e6), "the floor is the server's clock in microseconds")

	_, err := b.Try(t.Context(), redistest.Request(key))
	var held *backend.HeldError
	require.ErrorAs(t, err, &held)
	require.ErrorIs(t, err, backend.ErrHeld)
	require.Equal(t, key, held.Key)
	require.Equal(t, label, held.Holder.Label)
	require.Equal(t, "db|1", held.Holder.Host)
	require.Equal(t, 312, held.Holder.PID)
	require.WithinDuration(t, time.UnixMicro(now), held.Holder.Since, time.Minute)
	require.Positive(t, held.Remaining)
	require.LessOrEqual(t, held.Remaining, ttl)
	require.NotContains(t, err.Error(), req.ID.Hex())

	left, err := c.PTTL(t.Context(), namesOf(defaultPrefix, key).record()).Result()
	require.NoError(t, err)
	require.Positive(t, left)
	require.LessOrEqual(t, left, ttl)

	require.NoError(t, b.Release(t.Context(), hold))
	require.ErrorIs(t, b.Release(t.Context(), hold), backend.ErrNotHeld)
	_, next := backendtest.Granted(t, b, redistest.Request(key))
	require.Greater(t, next.Token, g.Token)

	apart, err := newBackend(c, key+":") // others raise the floor of the usual prefix
	require.NoError(t, err)
	defer func() { _ = apart.Close() }()
	_, first := backendtest.Granted(t, apart, redistest.Request(key))
	require.InDelta(t, time.Now().UnixMicro(), first.Token, 60e6, "and nothing more")
}

func TestRefusalLeavesTheRecordAlone(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	key := backendtest.UniqueKey(t)
	hold, _ := backendtest.Granted(t, b, ownedRequest(key, "alice", ttl))
	value, expires := raw(t, c, key)

	stranger := backend.HoldOf(redistest.Request(key))
	_, err := b.Try(t.Context(), backend.Request{Key: key, ID: stranger.ID, TTL: time.Hour})
	require.ErrorIs(t, err, backend.ErrHeld)
	_, err = b.Try(t.Context(), ownedRequest(key, "bob", time.Hour))
	require.ErrorIs(t, err, backend.ErrHeld)
	_, err = b.Renew(t.Context(), backend.Hold{Key: key, ID: stranger.ID, TTL: time.Hour})
	require.ErrorIs(t, err, backend.ErrNotHeld)
	// Knowing the owner is not enough to release what another acquisition holds.
	err = b.Release(t.Context(), backend.Hold{Key: key, ID: stranger.ID, Owner: "alice", Token: hold.Token})
	require.ErrorIs(t, err, backend.ErrNotHeld)
	require.ErrorIs(t, b.ForceRelease(t.Context(), key, hold.Token+1), backend.ErrNotHeld)
	require.ErrorIs(t, b.ForceRelease(t.Context(), key, hold.Token-1), backend.ErrNotHeld)

	value2, expires2 := raw(t, c, key)
	require.Equal(t, value, value2)
	require.Equal(t, expires, expires2)
}

func TestRepeatOfAnAcquisitionCountsOnce(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	for _, owner := range []string{"", "alice"} {
		key := backendtest.UniqueKey(t)
		req := ownedRequest(key, owner, ttl)
		_, first := backendtest.Granted(t, b, req)
		_, expires := raw(t, c, key)
		backendtest.Eventually(t, "the repeat extends the hold", func() bool {
			_, again := backendtest.Granted(t, b, req)
			require.Equal(t, first.Token, again.Token)
			require.Equal(t, 1, again.Holds)
			require.False(t, again.Sent.Before(first.Sent))
			_, later := raw(t, c, key)
			return later > expires
		})
		_, expires = raw(t, c, key)
		shorter := req
		shorter.TTL = time.Second
		backendtest.Granted(t, b, shorter)
		_, now := raw(t, c, key)
		require.GreaterOrEqual(t, now, expires-10*time.Millisecond, "a shorter TTL does not shorten the hold")
		require.NoError(t, b.Release(t.Context(), backend.HoldOf(req)))
		value, _ := raw(t, c, key)
		require.Empty(t, value)
	}
}

func TestReentrancyByOwner(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	other := backendOn(t, c) // another process, as far as the server can tell
	key := backendtest.UniqueKey(t)
	long, first := backendtest.Granted(t, b, ownedRequest(key, "alice", 2*time.Minute))
	_, expires := raw(t, c, key)
	brief, second := backendtest.Granted(t, other, ownedRequest(key, "alice", time.Minute))
	require.Equal(t, first.Token, second.Token)
	require.Equal(t, 2, second.Holds)
	_, still := raw(t, c, key)
	require.InDelta(t, expires, still, float64(10*time.Millisecond), "a shorter hold does not shorten the record")

	_, err := b.Try(t.Context(), redistest.Request(key))
	require.ErrorIs(t, err, backend.ErrHeld)
	rec, err := b.Inspect(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, 2, rec.Holds)

	require.NoError(t, b.Release(t.Context(), long))
	_, now := raw(t, c, key)
	require.Less(t, now, expires, "the expiry is that of the hold that remains")
	_, err = b.Renew(t.Context(), long)
	require.ErrorIs(t, err, backend.ErrNotHeld)
	_, err = other.Renew(t.Context(), brief)
	require.NoError(t, err)
	require.NoError(t, other.Release(t.Context(), brief))
	_, next := backendtest.Granted(t, b, ownedRequest(key, "alice", 2*time.Minute))
	require.Greater(t, next.Token, first.Token, "another outermost hold has another token")
}

func TestDeadHoldDoesNotLiveOnItsCoOwner(t *testing.T) {
	t.Parallel()
	b, _ := shared(t)
	key := backendtest.UniqueKey(t)
	dead, _ := backendtest.Granted(t, b, ownedRequest(key, "alice", wire.MinTTL))
	alive, _ := backendtest.Granted(t, b, ownedRequest(key, "alice", ttl))
	backendtest.Eventually(t, "the first hold expires", func() bool {
		_, err := b.Renew(t.Context(), alive)
		require.NoError(t, err)
		rec, err := b.Inspect(t.Context(), key)
		require.NoError(t, err)
		return rec.Holds == 1
	})
	_, err := b.Renew(t.Context(), dead)
	require.ErrorIs(t, err, backend.ErrNotHeld)
	require.ErrorIs(t, b.Release(t.Context(), dead), backend.ErrNotHeld)
	rec, err := b.Inspect(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, 1, rec.Holds)
	_, g := backendtest.Granted(t, b, ownedRequest(key, "alice", ttl))
	require.Equal(t, 2, g.Holds, "the dead hold is not counted")
}

func TestLimitOfHolds(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	key := backendtest.UniqueKey(t)
	var last backend.Hold
	for i := range backend.MaxHolds {
		hold, g := backendtest.Granted(t, b, ownedRequest(key, "alice", time.Minute))
		require.Equal(t, i+1, g.Holds)
		last = hold
	}
	value, _ := raw(t, c, key)
	_, err := b.Try(t.Context(), ownedRequest(key, "alice", time.Minute))
	require.ErrorIs(t, err, backend.ErrTooManyHolds)
	require.NotErrorIs(t, err, backend.ErrHeld)
	same, _ := raw(t, c, key)
	require.Equal(t, value, same)
	require.NoError(t, b.Release(t.Context(), last))
	_, g := backendtest.Granted(t, b, ownedRequest(key, "alice", time.Minute))
	require.Equal(t, backend.MaxHolds, g.Holds)
}

func TestRenewNeverShortensAndNeverRecreates(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	key := backendtest.UniqueKey(t)
	req := redistest.Request(key)
	req.TTL = time.Minute
	hold, _ := backendtest.Granted(t, b, req)
	value, expires := raw(t, c, key)
	shorter := hold
	shorter.TTL = time.Second
	v, err := b.Renew(t.Context(), shorter)
	require.NoError(t, err)
	require.Equal(t, backend.ValidFor(time.Second), v.For)
	value2, expires2 := raw(t, c, key)
	require.Equal(t, value, value2)
	require.InDelta(t, expires, expires2, float64(10*time.Millisecond))

	backendtest.Eventually(t, "a renewal moves the expiry to a full TTL from now", func() bool {
		_, err := b.Renew(t.Context(), hold)
		require.NoError(t, err)
		_, later := raw(t, c, key)
		left, err := c.PTTL(t.Context(), namesOf(defaultPrefix, key).record()).Result()
		require.NoError(t, err)
		require.LessOrEqual(t, left, time.Minute, "renewals don't add up")
		return later > expires
	})

	require.NoError(t, c.Del(t.Context(), namesOf(defaultPrefix, key).record()).Err())
	_, err = b.Renew(t.Context(), hold)
	require.ErrorIs(t, err, backend.ErrNotHeld)
	gone, _ := raw(t, c, key)
	require.Empty(t, gone)
}

func TestExpiryFreesTheKey(t *testing.T) {
	t.Parallel()
	b, _ := shared(t)
	key := backendtest.UniqueKey(t)
	req := redistest.Request(key)
	req.TTL = wire.MinTTL
	hold, first := backendtest.Granted(t, b, req)
	var second backend.Grant
	backendtest.Eventually(t, "somebody else gets the key", func() bool {
		var err error
		second, err = b.Try(t.Context(), redistest.Request(key))
		return err == nil
	})
	require.False(t, b.clock.Now().Before(first.Until()), "nobody else is granted the key before the deadline")
	require.Greater(t, second.Token, first.Token)
	_, err := b.Renew(t.Context(), hold)
	require.ErrorIs(t, err, backend.ErrNotHeld)
	require.ErrorIs(t, b.Release(t.Context(), hold), backend.ErrNotHeld)
	rec, err := b.Inspect(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, second.Token, rec.Token)
}

// An operator who takes the expiry off a record must not make it eternal.
func TestPersistedRecordExpiresAllTheSame(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	key := backendtest.UniqueKey(t)
	req := redistest.Request(key)
	req.TTL = wire.MinTTL
	_, first := backendtest.Granted(t, b, req)
	require.NoError(t, c.Persist(t.Context(), namesOf(defaultPrefix, key).record()).Err())
	var second backend.Grant
	backendtest.Eventually(t, "the hold expires", func() bool {
		var err error
		second, err = b.Try(t.Context(), redistest.Request(key))
		return err == nil
	})
	require.Greater(t, second.Token, first.Token)
}

func TestInspectAndForceRelease(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	key := backendtest.UniqueKey(t)
	_, err := b.Inspect(t.Context(), key)
	require.ErrorIs(t, err, backend.ErrNotHeld)
	require.ErrorIs(t, b.ForceRelease(t.Context(), key, 1), backend.ErrNotHeld)

	req := redistest.Request(key)
	req.Holder = backend.Holder{Label: "nightly", Host: "db1", PID: 7}
	hold, g := backendtest.Granted(t, b, req)
	value, expires := raw(t, c, key)
	rec, err := b.Inspect(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, key, rec.Key)
	require.Equal(t, g.Token, rec.Token)
	require.Equal(t, 1, rec.Holds)
	require.Equal(t, -1, rec.Waiters)
	require.Positive(t, rec.Remaining)
	require.LessOrEqual(t, rec.Remaining, ttl)
	require.Equal(t, "nightly", rec.Holder.Label)
	same, sameExpires := raw(t, c, key)
	require.Equal(t, value, same)
	require.Equal(t, expires, sameExpires)

	require.NoError(t, b.ForceRelease(t.Context(), key, g.Token))
	_, err = b.Renew(t.Context(), hold)
	require.ErrorIs(t, err, backend.ErrNotHeld)
	_, next := backendtest.Granted(t, b, redistest.Request(key))
	require.Greater(t, next.Token, g.Token)
	require.ErrorIs(t, b.ForceRelease(t.Context(), key, g.Token), backend.ErrNotHeld, "a newer holder is not hit")
}

func TestKeysAreApart(t *testing.T) {
	t.Parallel()
	b, _ := shared(t)
	base := backendtest.UniqueKey(t)
	for _, suffix := range []string{"", "/", "/b", " ", "A", "a", "é", "e\u0301", "{x}", "}", "*", "|", ":k:", "%d", strings.Repeat("x", backend.MaxKey-len(base))} {
		backendtest.Granted(t, b, redistest.Request(base+suffix))
	}
}

func TestPrefixesAreApart(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	key := backendtest.UniqueKey(t)
	other, err := NewBackend(t.Context(), c, &Options{Prefix: "other{tag}:"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = other.Close() })
	backendtest.Granted(t, b, redistest.Request(key))
	backendtest.Granted(t, other, redistest.Request(key))
}

func TestNoSecretIsStoredOrShown(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	key := backendtest.UniqueKey(t)
	req := ownedRequest(key, "owner-secret", ttl)
	backendtest.Granted(t, b, req)
	value, _ := raw(t, c, key)
	require.NotContains(t, value, "owner-secret")
	_, err := b.Try(t.Context(), redistest.Request(key))
	require.NotContains(t, err.Error(), ownerField("owner-secret"))
}

func TestOneWinner(t *testing.T) {
	t.Parallel()
	b, _ := shared(t)
	key := backendtest.UniqueKey(t)
	const rounds, contenders = 20, 16
	var last uint64
	for range rounds {
		var wg sync.WaitGroup
		grants := make(chan backend.Hold, contenders)
		for range contenders {
			wg.Go(func() {
				req := redistest.Request(key)
				g, err := b.Try(context.Background(), req)
				if err == nil {
					hold := backend.HoldOf(req)
					hold.Token = g.Token
					grants <- hold
				} else if !errors.Is(err, backend.ErrHeld) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.Len(t, grants, 1)
		hold := <-grants
		require.Greater(t, hold.Token, last)
		last = hold.Token
		require.NoError(t, b.Release(t.Context(), hold))
	}
}

func TestBucketsAreEven(t *testing.T) {
	t.Parallel()
	var n [256]int
	for i := range 256 * 100 {
		n[bucketOf(fmt.Sprintf("job-%d", i))]++
	}
	for bucket, keys := range n {
		require.InDelta(t, 100, keys, 60, "bucket %d", bucket)
	}
}
