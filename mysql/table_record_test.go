package mysqllock

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

func TestRowOfAHold(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		b, db := sharedTable(t, s)
		key := uniqueKey(t) + " ÄÖ "
		req := request(key)
		req.Holder = backend.Holder{Label: `a "label" <&> ü`, Host: "h", PID: 7}
		hold, g := granted(t, b, req)
		r := rawRow(t, db, DefaultTable, key)
		assert.Equal(t, key, r["lock_key"])
		assert.Equal(t, "-", r["owner"])
		assert.Equal(t, fmt.Sprint(g.Token), r["token"])
		assert.Equal(t, "1", r["hold_count"])
		assert.Contains(t, r["note"], `"pid":7`)
		assert.Greater(t, r["expires"], r["created"])
		for name, value := range r {
			assert.NotContains(t, value, req.ID.Hex(), name)
		}
		_, err := b.Try(t.Context(), request(key))
		var held *backend.HeldError
		require.ErrorAs(t, err, &held)
		assert.Equal(t, req.Holder.Label, held.Holder.Label)
		assert.WithinDuration(t, time.Now(), held.Holder.Since, time.Minute)
		assert.Greater(t, held.Remaining, ttl/2)
		assert.LessOrEqual(t, held.Remaining, ttl)

		require.NoError(t, b.Release(t.Context(), hold))
		r = rawRow(t, db, DefaultTable, key)
		assert.Equal(t, "0", r["hold_count"])
		assert.Equal(t, fmt.Sprint(g.Token), r["token"], "the row and its token stay")
		require.ErrorIs(t, b.Release(t.Context(), hold), backend.ErrNotHeld)
		_, err = b.Renew(t.Context(), hold)
		require.ErrorIs(t, err, backend.ErrNotHeld)
	})
}

// Two clients with one owner: the table shows two holds, and frees the key with the
// last of them.
func TestOneOwnerTwoClients(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		a, db := sharedTable(t, s)
		b, _ := sharedTable(t, s)
		key := uniqueKey(t)
		first, g1 := granted(t, a, ownedRequest(key, "alice", ttl))
		second, g2 := granted(t, b, ownedRequest(key, "alice", 2*ttl))
		assert.Equal(t, 1, g1.Holds)
		assert.Equal(t, 2, g2.Holds)
		assert.Equal(t, g1.Token, g2.Token)
		r := rawRow(t, db, DefaultTable, key)
		assert.Equal(t, "2", r["hold_count"])
		for name, value := range r {
			assert.NotContains(t, value, "alice", name)
		}
		rec, err := a.Inspect(t.Context(), key)
		require.NoError(t, err)
		assert.Equal(t, 2, rec.Holds)
		assert.Greater(t, rec.Remaining, ttl)

		for _, c := range []*tableBackend{a, b} {
			_, err = c.Try(t.Context(), ownedRequest(key, "bob", ttl))
			require.ErrorIs(t, err, backend.ErrHeld)
			_, err = c.Try(t.Context(), request(key))
			require.ErrorIs(t, err, backend.ErrHeld)
		}
		_, err = a.Renew(t.Context(), first)
		require.NoError(t, err)
		_, err = b.Renew(t.Context(), second)
		require.NoError(t, err)
		require.NoError(t, b.Release(t.Context(), second))
		rec, err = a.Inspect(t.Context(), key)
		require.NoError(t, err)
		assert.Equal(t, 1, rec.Holds)
		assert.LessOrEqual(t, rec.Remaining, ttl, "the expiry is that of the hold that is left")
		require.NoError(t, a.Release(t.Context(), first))
		_, err = a.Inspect(t.Context(), key)
		require.ErrorIs(t, err, backend.ErrNotHeld)
	})
}

func TestRepeatsChangeNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		b, _ := sharedTable(t, s)
		for _, owner := range []string{"", "alice"} {
			key := uniqueKey(t)
			req := ownedRequest(key, owner, ttl)
			hold, g := granted(t, b, req)
			_, again := granted(t, b, req)
			assert.Equal(t, g.Token, again.Token)
			assert.Equal(t, 1, again.Holds)
			if owner != "" {
				_, two := granted(t, b, ownedRequest(key, owner, ttl))
				assert.Equal(t, 2, two.Holds)
				_, again = granted(t, b, req)
				assert.Equal(t, 2, again.Holds)
				assert.Equal(t, g.Token, again.Token)
			}
			to := request(key)
			if owner == "" {
				next, err := b.HandOver(t.Context(), hold, to)
				require.NoError(t, err)
				assert.Greater(t, next.Token, g.Token)
				repeated, err := b.HandOver(t.Context(), hold, to)
				require.NoError(t, err)
				assert.Equal(t, next.Token, repeated.Token)
				_, err = b.HandOver(t.Context(), hold, request(key))
				require.ErrorIs(t, err, backend.ErrNotHeld)
			} else {
				_, err := b.HandOver(t.Context(), hold, to)
				require.ErrorIs(t, err, backend.ErrUnsupported)
			}
		}
	})
}

// Many clients of one owner change one row at once: none is refused, none is lost.
func TestManyHoldsOfOneOwner(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		b, _ := sharedTable(t, s)
		key := uniqueKey(t)
		holds := make([]backend.Hold, backend.MaxHolds)
		for i := range holds {
			holds[i], _ = granted(t, b, ownedRequest(key, strings.Repeat("o", backend.MaxOwner), 29*24*time.Hour))
		}
		_, err := b.Try(t.Context(), ownedRequest(key, strings.Repeat("o", backend.MaxOwner), ttl))
		require.ErrorIs(t, err, backend.ErrTooManyHolds)
		for _, h := range holds {
			_, err := b.Renew(t.Context(), h)
			require.NoError(t, err)
		}
		for _, h := range holds[8:] {
			require.NoError(t, b.Release(t.Context(), h))
		}
		var wg sync.WaitGroup
		for _, h := range holds[:8] {
			wg.Go(func() {
				_, err := b.Renew(t.Context(), h)
				assert.NoError(t, err)
				assert.NoError(t, b.Release(t.Context(), h))
			})
		}
		wg.Wait()
		_, err = b.Inspect(t.Context(), key)
		require.ErrorIs(t, err, backend.ErrNotHeld)
	})
}

// The answer of a renewal does not come from the number of changed rows: a hundred
// in a row succeed, and a shorter TTL takes nothing away.
func TestRenewalsThatChangeNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		for _, params := range []string{"clientFoundRows=false", "clientFoundRows=true"} {
			b := tableOn(t, userPool(t, s, params), nil)
			hold, _ := granted(t, b, request(uniqueKey(t)))
			shorter := hold
			shorter.TTL = time.Second
			for range 100 {
				_, err := b.Renew(t.Context(), shorter)
				require.NoError(t, err)
			}
			rec, err := b.Inspect(t.Context(), hold.Key)
			require.NoError(t, err)
			require.Greater(t, rec.Remaining, ttl/2)
		}
	})
}

func TestRenewBatch(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		db := userPool(t, s, "")
		db.SetMaxOpenConns(1)
		b := tableOn(t, db, nil)
		var holds []backend.Hold
		for i := range 8 {
			h, _ := granted(t, b, request(fmt.Sprintf("%s/%d", uniqueKey(t), i)))
			holds = append(holds, h)
		}
		before := questions(t, db)
		for i, r := range b.RenewBatch(t.Context(), holds) {
			require.NoError(t, r.Err, i)
			require.Equal(t, backend.ValidFor(ttl), r.Validity.For)
		}
		require.Equal(t, 2, questions(t, db)-before-1, "one statement extends, one reads")

		require.NoError(t, b.Release(t.Context(), holds[0]))                          // gone
		require.NoError(t, b.ForceRelease(t.Context(), holds[1].Key, holds[1].Token)) // removed
		taken, _ := granted(t, b, request(holds[1].Key))                              // and somebody else's
		owned, _ := granted(t, b, ownedRequest(uniqueKey(t), "o", ttl))               // with company
		granted(t, b, ownedRequest(owned.Key, "o", ttl))
		other, _ := granted(t, b, ownedRequest(uniqueKey(t), "", 2*ttl)) // another TTL
		for i, r := range b.RenewBatch(t.Context(), append(holds, owned, other)) {
			if i < 2 {
				require.ErrorIs(t, r.Err, backend.ErrNotHeld, i)
				continue
			}
			require.NoError(t, r.Err, i)
			require.NotZero(t, r.Validity.For, i)
		}
		_, err := b.Renew(t.Context(), taken)
		require.NoError(t, err)
	})
}

// Acquire and release of a key that this client has used last: two statements. Of
// any other free key: three.
func TestStatementsOfAPair(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		db := userPool(t, s, "")
		db.SetMaxOpenConns(1)
		b := tableOn(t, db, nil)
		b.clock = stoppedClock(b.clock.Now()) // what was freed is remembered for a second
		pair := func(key string) int {
			before := questions(t, db)
			hold, _ := granted(t, b, request(key))
			require.NoError(t, b.Release(t.Context(), hold))
			return questions(t, db) - before - 1
		}
		key := uniqueKey(t)
		require.Equal(t, 3, pair(key), "a new key")
		require.Equal(t, 2, pair(key), "the same client again")
		b.freed = freedKeys{}
		require.Equal(t, 3, pair(key), "another client")
		hold, _ := granted(t, b, request(key))
		before := questions(t, db)
		_, err := b.Try(t.Context(), request(key))
		require.ErrorIs(t, err, backend.ErrHeld)
		require.Equal(t, 1, questions(t, db)-before-1, "a refusal")
		before = questions(t, db)
		_, err = b.HandOver(t.Context(), hold, request(key))
		require.NoError(t, err)
		require.Equal(t, 1, questions(t, db)-before-1, "a hand-over")
	})
}

type stoppedClock backend.Instant

func (c stoppedClock) Now() backend.Instant { return backend.Instant(c) }

func TestTokensEnd(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		b, db := sharedTable(t, s)
		key := uniqueKey(t)
		hold, _ := granted(t, b, request(key))
		execOn(t, db, "UPDATE locks SET token=? WHERE lock_key=?", int64(lastToken)-2, []byte(key))
		require.NoError(t, b.Release(t.Context(), hold))
		for want := int64(lastToken) - 1; want <= lastToken; want++ {
			h, g := granted(t, b, request(key))
			require.EqualValues(t, want, g.Token)
			require.NoError(t, b.Release(t.Context(), h))
		}
		_, err := b.Try(t.Context(), request(key))
		require.ErrorIs(t, err, backend.ErrPermanent)
		require.ErrorContains(t, err, "tokens are used up")
	})
}

// A row that was not written by us is left alone.
func TestForeignRow(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		b, db := sharedTable(t, s)
		hold, _ := granted(t, b, request(uniqueKey(t)))
		execOn(t, db, "UPDATE locks SET holds='something else' WHERE lock_key=?", []byte(hold.Key))
		before := rawRow(t, db, DefaultTable, hold.Key)
		_, err := b.Try(t.Context(), request(hold.Key))
		require.ErrorIs(t, err, backend.ErrPermanent)
		hold.Owner = "o"
		require.ErrorIs(t, b.Release(t.Context(), hold), backend.ErrPermanent)
		_, err = b.Renew(t.Context(), hold)
		require.ErrorIs(t, err, backend.ErrPermanent)
		_, err = b.Inspect(t.Context(), hold.Key)
		require.ErrorIs(t, err, backend.ErrPermanent)
		require.Equal(t, before, rawRow(t, db, DefaultTable, hold.Key))
	})
}

// Why a renewal fails, where the row can tell.
func TestCausesOfLoss(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		b, db := sharedTable(t, s)
		hold, _ := granted(t, b, request(uniqueKey(t)))
		execOn(t, db, "UPDATE locks SET expires=UTC_TIMESTAMP(6) WHERE lock_key=?", []byte(hold.Key))
		_, err := b.Renew(t.Context(), hold)
		require.ErrorIs(t, err, backend.ErrExpired)
		execOn(t, db, "UPDATE locks SET token=token-1 WHERE lock_key=?", []byte(hold.Key))
		_, err = b.Renew(t.Context(), hold)
		require.ErrorIs(t, err, backend.ErrTakenOver)
		require.ErrorContains(t, err, "older token")
		execOn(t, db, "DELETE FROM locks WHERE lock_key=?", []byte(hold.Key))
		_, err = b.Renew(t.Context(), hold)
		require.ErrorIs(t, err, backend.ErrNotHeld)
	})
}

// Fifty goroutines on new keys: creating rows is where lock tables deadlock.
func TestNewKeysDontDeadlock(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		length := storm()
		db := userPool(t, s, "")
		db.SetMaxOpenConns(50)
		l := lockerOn(t, db, nil)
		admin := adminPool(t, s)
		before := deadlocks(t, admin)
		ctx, cancel := context.WithTimeout(t.Context(), length)
		defer cancel()
		var wg sync.WaitGroup
		var mu sync.Mutex
		taken, refused := 0, 0
		for g := range 50 {
			wg.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					// Five goroutines ask for each new key, in no order of the keys.
					key := fmt.Sprintf("%s/%d/%x/%d", t.Name(), g/5, hashOf(fmt.Sprint(i)), i)
					lease, err := l.TryAcquire(t.Context(), key)
					if err != nil {
						assert.ErrorIs(t, err, lock.ErrHeld)
					} else {
						assert.NoError(t, lease.Release(t.Context()))
					}
					mu.Lock()
					if err == nil {
						taken++
					} else {
						refused++
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		t.Logf("%s: %d granted, %d refused; %d deadlocks seen by the server", length, taken, refused, deadlocks(t, admin)-before)
	})
}
