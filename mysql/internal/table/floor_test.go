package table

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
)

// once is the token of a grant that is released again.
func once(t *testing.T, b *Backend, key string) uint64 {
	t.Helper()
	return backendtest.TokenOf(t, b, mysqltest.Request(key), false)
}

// What is free, new, or expired counts on from the floor, and so does what was held, once
// its holder, whose token stays, has renewed and released.
func TestFloorOfEveryRow(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		name := mysqltest.OwnTable(t, db)
		a, b := tableOn(t, db, Options{Table: name}), tableOn(t, db, Options{Table: name})
		const free = 450 // more than two statements
		manyFree(t, b, free)
		type held struct {
			hold backend.Hold
			end  func(h backend.Hold) error
		}
		holds := map[string]held{}
		take := func(key, owner string, end func(h backend.Hold) error) {
			h, g := backendtest.Granted(t, b, mysqltest.OwnedRequest(key, owner, mysqltest.TTL))
			h.Token = g.Token
			holds[key] = held{h, end}
		}
		release := func(h backend.Hold) error { return b.Release(t.Context(), h) }
		take("released", "", release)
		take("renewed", "", func(h backend.Hold) error {
			if _, err := b.Renew(t.Context(), h); err != nil {
				return err
			}
			return release(h)
		})
		take("renewed with others", "", func(h backend.Hold) error {
			if r := b.RenewBatch(t.Context(), []backend.Hold{h}); r[0].Err != nil {
				return r[0].Err
			}
			return release(h)
		})
		take("entered again", "alice", func(h backend.Hold) error {
			again, g := backendtest.Granted(t, a, mysqltest.OwnedRequest("entered again", "alice", mysqltest.TTL))
			assert.Equal(t, h.Token, g.Token)
			if _, err := b.Renew(t.Context(), h); err != nil {
				return err
			}
			if err := release(h); err != nil {
				return err
			}
			return a.Release(t.Context(), again)
		})
		take("forced", "", func(h backend.Hold) error { return a.ForceRelease(t.Context(), h.Key, h.Token) })
		take("revoked and forced", "", func(h backend.Hold) error {
			if err := a.Revoke(t.Context(), h.Key, h.Token); err != nil {
				return err
			}
			return a.ForceRelease(t.Context(), h.Key, h.Token)
		})
		take("expired", "", func(h backend.Hold) error {
			mysqltest.Exec(t, db, "UPDATE "+b.table+" SET expires=UTC_TIMESTAMP(6)-INTERVAL 1 MICROSECOND WHERE lock_key=?", h.Key)
			return nil
		})

		above := uint64(time.Now().Add(time.Hour).UnixMicro())
		require.NoError(t, a.RaiseFloor(t.Context(), above))
		last, err := b.LastToken(t.Context())
		require.NoError(t, err)
		assert.Equal(t, above, last)
		for _, key := range []string{"old/0000", fmt.Sprintf("old/%d", free-1), "new"} {
			require.Greater(t, once(t, b, key), above, key)
		}
		var behind int
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+b.table+" WHERE token<?", int64(above)).Scan(&behind))
		assert.Equal(t, len(holds), behind, "what is held, and nothing else")
		for key, h := range holds {
			rec, err := a.Inspect(t.Context(), key)
			require.NoError(t, err, key)
			require.Equal(t, h.hold.Token, rec.Token, key)
			require.NoError(t, h.end(h.hold), key)
			token := once(t, a, key)
			require.Greater(t, token, above, key)
			require.Less(t, token, above+1000, key)
		}
		require.NoError(t, a.RaiseFloor(t.Context(), above-1), "it is as high already")
		require.Greater(t, once(t, b, "old/0000"), above+1)

		from, _ := backendtest.Granted(t, b, mysqltest.Request("handed over"))
		above += uint64(time.Hour.Microseconds())
		require.NoError(t, a.RaiseFloor(t.Context(), above))
		g, err := b.HandOver(t.Context(), from, mysqltest.Request("handed over"))
		require.NoError(t, err)
		require.Greater(t, g.Token, above)

		require.ErrorIs(t, a.RaiseFloor(t.Context(), lastToken), backend.ErrInvalid)
		require.NoError(t, a.RaiseFloor(t.Context(), lastToken-1))
		for _, key := range []string{"old/0000", "newer"} {
			assert.EqualValues(t, lastToken, once(t, b, key), "there is one left")
		}
	})
}

// A row that a guarded write has locked is raised when that has ended.
func TestFloorWaitsForALockedRow(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		b := tableOn(t, db, Options{Table: mysqltest.OwnTable(t, db)})
		once(t, b, "k")
		once(t, b, "other")
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "SELECT 1 FROM "+b.table+" WHERE lock_key='k' FOR UPDATE")
		require.NoError(t, err)
		above := uint64(time.Now().Add(time.Hour).UnixMicro())
		raised := make(chan error, 1)
		go func() { raised <- b.RaiseFloor(t.Context(), above) }()
		backendtest.Eventually(t, "the other row is raised", func() bool {
			r, err := b.one(t.Context(), "other")
			return err == nil && r.token == int64(above)
		})
		select {
		case err := <-raised:
			require.Fail(t, "it did not wait", "%v", err)
		default:
		}
		require.NoError(t, tx.Rollback())
		require.NoError(t, <-raised)
		require.Greater(t, once(t, b, "k"), above)
	})
}

// A key that a clock was ahead for counts on from there, and its token is found after it was
// released and after a clean-up has removed its row.
func TestLastTokenOfARowAheadOfTheClock(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		b := tableOn(t, db, Options{Table: mysqltest.OwnTable(t, db)})
		last, err := b.LastToken(t.Context())
		require.NoError(t, err)
		require.Zero(t, last)
		first := once(t, b, "k")
		mysqltest.Exec(t, db, "UPDATE "+b.table+" SET token=token+3600000000 WHERE lock_key='k'")
		token := once(t, b, "k")
		require.Greater(t, token, first+3_600_000_000)
		once(t, b, "other")
		last, err = b.LastToken(t.Context())
		require.NoError(t, err)
		require.Equal(t, token, last)
		age(t, b, "2 DAY")
		_, err = b.Cleanup(t.Context(), time.Hour, false)
		require.NoError(t, err)
		last, err = b.LastToken(t.Context())
		require.NoError(t, err)
		require.Equal(t, token, last)
	})
}
