package table

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
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
)

func TestRowOfAHold(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		b, db := sharedTable(t, s)
		key := backendtest.UniqueKey(t) + " ÄÖ "
		req := mysqltest.Request(key)
		req.Holder = backend.Holder{Label: `a "label" <&> ü`, Host: "h", PID: 7}
		hold, g := backendtest.Granted(t, b, req)
		r := mysqltest.RawRow(t, db, DefaultName, key)
		assert.Equal(t, key, r["lock_key"])
		assert.Equal(t, "-", r["owner"])
		assert.Equal(t, fmt.Sprint(g.Token), r["token"])
		assert.Equal(t, "1", r["hold_count"])
		assert.Contains(t, r["note"], `"pid":7`)
		assert.Greater(t, r["expires"], r["created"])
		for name, value := range r {
			assert.NotContains(t, value, req.ID.Hex(), name)
		}
		_, err := b.Try(t.Context(), mysqltest.Request(key))
		var held *backend.HeldError
		require.ErrorAs(t, err, &held)
		assert.Equal(t, req.Holder.Label, held.Holder.Label)
		assert.WithinDuration(t, time.Now(), held.Holder.Since, time.Minute)
		assert.Greater(t, held.Remaining, mysqltest.TTL/2)
		assert.LessOrEqual(t, held.Remaining, mysqltest.TTL)

		require.NoError(t, b.Release(t.Context(), hold))
		r = mysqltest.RawRow(t, db, DefaultName, key)
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
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		a, db := sharedTable(t, s)
		b, _ := sharedTable(t, s)
		key := backendtest.UniqueKey(t)
		first, g1 := backendtest.Granted(t, a, mysqltest.OwnedRequest(key, "alice", mysqltest.TTL))
		second, g2 := backendtest.Granted(t, b, mysqltest.OwnedRequest(key, "alice", 2*mysqltest.TTL))
		assert.Equal(t, 1, g1.Holds)
		assert.Equal(t, 2, g2.Holds)
		assert.Equal(t, g1.Token, g2.Token)
		r := mysqltest.RawRow(t, db, DefaultName, key)
		assert.Equal(t, "2", r["hold_count"])
		for name, value := range r {
			assert.NotContains(t, value, "alice", name)
		}
		rec, err := a.Inspect(t.Context(), key)
		require.NoError(t, err)
		assert.Equal(t, 2, rec.Holds)
		assert.Greater(t, rec.Remaining, mysqltest.TTL)

		for _, c := range []*Backend{a, b} {
			_, err = c.Try(t.Context(), mysqltest.OwnedRequest(key, "bob", mysqltest.TTL))
			require.ErrorIs(t, err, backend.ErrHeld)
			_, err = c.Try(t.Context(), mysqltest.Request(key))
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
		assert.LessOrEqual(t, rec.Remaining, mysqltest.TTL, "the expiry is that of the hold that is left")
		require.NoError(t, a.Release(t.Context(), first))
		_, err = a.Inspect(t.Context(), key)
		require.ErrorIs(t, err, backend.ErrNotHeld)
	})
}

func TestRepeatsChangeNothing(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		b, _ := sharedTable(t, s)
		for _, owner := range []string{"", "alice"} {
			key := backendtest.UniqueKey(t)
			req := mysqltest.OwnedRequest(key, owner, mysqltest.TTL)
			hold, g := backendtest.Granted(t, b, req)
			_, again := backendtest.Granted(t, b, req)
			assert.Equal(t, g.Token, again.Token)
			assert.Equal(t, 1, again.Holds)
			if owner != "" {
				_, two := backendtest.Granted(t, b, mysqltest.OwnedRequest(key, owner, mysqltest.TTL))
				assert.Equal(t, 2, two.Holds)
				_, again = backendtest.Granted(t, b, req)
				assert.Equal(t, 2, again.Holds)
				assert.Equal(t, g.Token, again.Token)
			}
			to := mysqltest.Request(key)
			if owner == "" {
				next, err := b.HandOver(t.Context(), hold, to)
				require.NoError(t, err)
				assert.Greater(t, next.Token, g.Token)
				repeated, err := b.HandOver(t.Context(), hold, to)
				require.NoError(t, err)
				assert.Equal(t, next.Token, repeated.Token)
				_, err = b.HandOver(t.Context(), hold, mysqltest.Request(key))
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
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		b, _ := sharedTable(t, s)
		key := backendtest.UniqueKey(t)
		holds := make([]backend.Hold, backend.MaxHolds)
		for i := range holds {
			holds[i], _ = backendtest.Granted(t, b, mysqltest.OwnedRequest(key, strings.Repeat("o", backend.MaxOwner), 29*24*time.Hour))
		}
		_, err := b.Try(t.Context(), mysqltest.OwnedRequest(key, strings.Repeat("o", backend.MaxOwner), mysqltest.TTL))
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
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		for _, params := range []string{"clientFoundRows=false", "clientFoundRows=true"} {
			b := tableOn(t, mysqltest.UserPool(t, s, params), Options{})
			hold, _ := backendtest.Granted(t, b, mysqltest.Request(backendtest.UniqueKey(t)))
			shorter := hold
			shorter.TTL = time.Second
			for range 100 {
				_, err := b.Renew(t.Context(), shorter)
				require.NoError(t, err)
			}
			rec, err := b.Inspect(t.Context(), hold.Key)
			require.NoError(t, err)
			require.Greater(t, rec.Remaining, mysqltest.TTL/2)
		}
	})
}

func TestRenewBatch(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		db.SetMaxOpenConns(1)
		b := tableOn(t, db, Options{})
		var holds []backend.Hold
		for i := range 8 {
			h, _ := backendtest.Granted(t, b, mysqltest.Request(fmt.Sprintf("%s/%d", backendtest.UniqueKey(t), i)))
			holds = append(holds, h)
		}
		before := questions(t, db)
		for i, r := range b.RenewBatch(t.Context(), holds) {
			require.NoError(t, r.Err, i)
			require.Equal(t, backend.ValidFor(mysqltest.TTL), r.Validity.For)
		}
		require.Equal(t, 2, questions(t, db)-before-1, "one statement extends, one reads")

		require.NoError(t, b.Release(t.Context(), holds[0]))                                                        // gone
		require.NoError(t, b.ForceRelease(t.Context(), holds[1].Key, holds[1].Token))                               // removed
		taken, _ := backendtest.Granted(t, b, mysqltest.Request(holds[1].Key))                                      // and somebody else's
		owned, _ := backendtest.Granted(t, b, mysqltest.OwnedRequest(backendtest.UniqueKey(t), "o", mysqltest.TTL)) // with company
		backendtest.Granted(t, b, mysqltest.OwnedRequest(owned.Key, "o", mysqltest.TTL))
		other, _ := backendtest.Granted(t, b, mysqltest.OwnedRequest(backendtest.UniqueKey(t), "", 2*mysqltest.TTL)) // another TTL
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
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		db.SetMaxOpenConns(1)
		b := tableOn(t, db, Options{})
		b.clock = stoppedClock(b.clock.Now()) // what was freed is remembered for a second
		pair := func(key string) int {
			before := questions(t, db)
			hold, _ := backendtest.Granted(t, b, mysqltest.Request(key))
			require.NoError(t, b.Release(t.Context(), hold))
			return questions(t, db) - before - 1
		}
		key := backendtest.UniqueKey(t)
		require.Equal(t, 3, pair(key), "a new key")
		require.Equal(t, 2, pair(key), "the same client again")
		b.freed = freedKeys{}
		require.Equal(t, 3, pair(key), "another client")
		hold, _ := backendtest.Granted(t, b, mysqltest.Request(key))
		before := questions(t, db)
		_, err := b.Try(t.Context(), mysqltest.Request(key))
		require.ErrorIs(t, err, backend.ErrHeld)
		require.Equal(t, 1, questions(t, db)-before-1, "a refusal")
		before = questions(t, db)
		_, err = b.HandOver(t.Context(), hold, mysqltest.Request(key))
		require.NoError(t, err)
		require.Equal(t, 1, questions(t, db)-before-1, "a hand-over")
	})
}

type stoppedClock backend.Instant

func (c stoppedClock) Now() backend.Instant { return backend.Instant(c) }

func TestTokensEnd(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		b, db := sharedTable(t, s)
		key := backendtest.UniqueKey(t)
		hold, _ := backendtest.Granted(t, b, mysqltest.Request(key))
		mysqltest.Exec(t, db, "UPDATE locks SET token=? WHERE lock_key=?", int64(lastToken)-2, []byte(key))
		require.NoError(t, b.Release(t.Context(), hold))
		for want := int64(lastToken) - 1; want <= lastToken; want++ {
			h, g := backendtest.Granted(t, b, mysqltest.Request(key))
			require.EqualValues(t, want, g.Token)
			require.NoError(t, b.Release(t.Context(), h))
		}
		_, err := b.Try(t.Context(), mysqltest.Request(key))
		require.ErrorIs(t, err, backend.ErrPermanent)
		require.ErrorContains(t, err, "tokens are used up")
	})
}

// A row that was not written by us is left alone.
func TestForeignRow(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		b, db := sharedTable(t, s)
		hold, _ := backendtest.Granted(t, b, mysqltest.Request(backendtest.UniqueKey(t)))
		mysqltest.Exec(t, db, "UPDATE locks SET holds='something else' WHERE lock_key=?", []byte(hold.Key))
		before := mysqltest.RawRow(t, db, DefaultName, hold.Key)
		_, err := b.Try(t.Context(), mysqltest.Request(hold.Key))
		require.ErrorIs(t, err, backend.ErrPermanent)
		hold.Owner = "o"
		require.ErrorIs(t, b.Release(t.Context(), hold), backend.ErrPermanent)
		_, err = b.Renew(t.Context(), hold)
		require.ErrorIs(t, err, backend.ErrPermanent)
		_, err = b.Inspect(t.Context(), hold.Key)
		require.ErrorIs(t, err, backend.ErrPermanent)
		require.Equal(t, before, mysqltest.RawRow(t, db, DefaultName, hold.Key))
	})
}

// Why a renewal fails, where the row can tell.
func TestCausesOfLoss(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		b, db := sharedTable(t, s)
		hold, _ := backendtest.Granted(t, b, mysqltest.Request(backendtest.UniqueKey(t)))
		mysqltest.Exec(t, db, "UPDATE locks SET expires=UTC_TIMESTAMP(6) WHERE lock_key=?", []byte(hold.Key))
		_, err := b.Renew(t.Context(), hold)
		require.ErrorIs(t, err, backend.ErrExpired)
		mysqltest.Exec(t, db, "UPDATE locks SET token=token-1 WHERE lock_key=?", []byte(hold.Key))
		_, err = b.Renew(t.Context(), hold)
		require.ErrorIs(t, err, backend.ErrTakenOver)
		require.ErrorContains(t, err, "older token")
		mysqltest.Exec(t, db, "DELETE FROM locks WHERE lock_key=?", []byte(hold.Key))
		_, err = b.Renew(t.Context(), hold)
		require.ErrorIs(t, err, backend.ErrNotHeld)
	})
}

// Fifty goroutines on new keys: creating rows is where lock tables deadlock.
func TestNewKeysDontDeadlock(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		length := mysqltest.Storm()
		db := mysqltest.UserPool(t, s, "")
		db.SetMaxOpenConns(50)
		l := lockerOn(t, db, lock.Options{})
		admin := mysqltest.AdminPool(t, s)
		before := mysqltest.Deadlocks(t, admin)
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
		t.Logf("%s: %d granted, %d refused; %d deadlocks seen by the server", length, taken, refused, mysqltest.Deadlocks(t, admin)-before)
	})
}
