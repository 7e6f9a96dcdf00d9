package table

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
)

// age makes rows look as if they had been used last long ago.
func age(t *testing.T, b *Backend, by string) {
	t.Helper()
	mysqltest.Exec(t, b.db, "UPDATE "+b.table+" SET updated=updated-INTERVAL "+by+" WHERE lock_key<>x'00'")
}

func TestCleanup(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		opts := Options{Table: mysqltest.OwnTable(t, db)}
		b := tableOn(t, db, opts)
		_, err := Cleanup(t.Context(), db, opts.Table, 0)
		require.ErrorIs(t, err, backend.ErrInvalid)
		const old = 450 // more than two transactions
		manyFree(t, b, old)
		held, _ := backendtest.Granted(t, b, mysqltest.Request("held"))
		age(t, b, "2 DAY")
		recent, _ := backendtest.Granted(t, b, mysqltest.Request("recent"))
		require.NoError(t, b.Release(t.Context(), recent))

		n, err := Cleanup(t.Context(), db, opts.Table, 3*24*time.Hour)
		require.NoError(t, err)
		require.Zero(t, n)
		n, err = b.Cleanup(t.Context(), 24*time.Hour, true)
		require.NoError(t, err)
		require.Equal(t, old, n)
		_, err = b.Cleanup(t.Context(), 0, true)
		require.ErrorIs(t, err, backend.ErrInvalid)
		n, err = Cleanup(t.Context(), db, opts.Table, 24*time.Hour)
		require.NoError(t, err)
		require.Equal(t, old, n)
		var rows int
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+b.table).Scan(&rows))
		require.Equal(t, 3, rows, "the held one, the recent one and the floor")
		_, err = b.Renew(t.Context(), held)
		require.NoError(t, err)
	})
}

// The server's clock is behind the tokens, as after it was set back: a removed row
// takes the memory of its tokens with it, except for the floor.
func TestCleanupKeepsTokensRising(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		b := tableOn(t, db, Options{Table: mysqltest.OwnTable(t, db)})
		const ahead = int64(1) << 52
		hold, _ := backendtest.Granted(t, b, mysqltest.Request("k"))
		require.NoError(t, b.Release(t.Context(), hold))
		mysqltest.Exec(t, db, "UPDATE "+b.table+" SET token=? WHERE lock_key='k'", ahead)
		last, g := backendtest.Granted(t, b, mysqltest.Request("k"))
		require.EqualValues(t, ahead+1, g.Token)
		require.NoError(t, b.Release(t.Context(), last))
		for range 3 {
			age(t, b, "2 DAY")
			n, err := b.Cleanup(t.Context(), time.Hour, false)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			next, g2 := backendtest.Granted(t, b, mysqltest.Request("k"))
			require.Greater(t, g2.Token, g.Token)
			g = g2
			require.NoError(t, b.Release(t.Context(), next))
		}
		_, other := backendtest.Granted(t, b, mysqltest.Request("never seen before"))
		require.Greater(t, other.Token, uint64(ahead))
	})
}

// Clean-ups beside users of the same rows: tokens rise, no error is seen, and no
// hold is removed.
func TestCleanupBesideUsers(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		db.SetMaxOpenConns(16)
		b := tableOn(t, db, Options{Table: mysqltest.OwnTable(t, db)})
		var wg sync.WaitGroup
		var removed atomic.Int64
		begun := time.Now()
		over := func() bool {
			lasted := time.Since(begun)
			return lasted > mysqltest.Patience || lasted > mysqltest.Storm() && removed.Load() > 0
		}
		for range 2 {
			wg.Go(func() {
				for !over() {
					n, err := b.Cleanup(t.Context(), time.Microsecond, false)
					assert.NoError(t, err)
					removed.Add(int64(n))
				}
			})
		}
		for u := range 8 {
			wg.Go(func() {
				var last uint64
				for !over() {
					key := fmt.Sprint("k", u/2)
					req := mysqltest.Request(key)
					g, err := b.Try(t.Context(), req)
					if err != nil {
						assert.ErrorIs(t, err, backend.ErrHeld)
						continue
					}
					assert.Greater(t, g.Token, last)
					last = g.Token
					assert.NoError(t, b.Release(t.Context(), backend.HoldOf(req)))
				}
			})
		}
		wg.Wait()
		t.Logf("removed %d rows", removed.Load())
		require.NotZero(t, removed.Load())
	})
}

// manyFree makes rows of keys that somebody has used.
func manyFree(t *testing.T, b *Backend, n int) {
	t.Helper()
	hold, _ := backendtest.Granted(t, b, mysqltest.Request("old/0000"))
	require.NoError(t, b.Release(t.Context(), hold))
	mysqltest.Numbered(t, b.db, b.table, columns, hold.Key, "old/", n, "i>0")
}

// oldRows are rows of keys that nobody has used for long.
func oldRows(t *testing.T, b *Backend, n int) {
	t.Helper()
	manyFree(t, b, n)
	age(t, b, "2 DAY")
}

// A clean-up waits neither for a guarded write nor for a row that somebody has locked by
// hand, and new keys wait for none of them.
func TestCleanupWaitsForNobody(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		opts := Options{Table: mysqltest.OwnTable(t, db)}
		b := tableOn(t, db, opts)
		const old = 30
		oldRows(t, b, old)
		l := lockerOf(t, tableOn(t, db, opts), lock.Options{})
		lease, err := l.Acquire(t.Context(), "old/0015-written", lock.WithTTL(time.Minute))
		require.NoError(t, err)
		require.NoError(t, Guarded(t.Context(), lease, func(context.Context, *sql.Tx) error {
			onLockedRow(t, db, b.table, "old/0007", func() {
				ctx := backendtest.Short(t, mysqltest.Patience/2)
				n, err := Cleanup(ctx, db, opts.Table, 24*time.Hour)
				assert.NoError(t, err)
				assert.Equal(t, old-1, n, "the one that is locked is left")
				for _, key := range []string{"new", "old/0015"} {
					_, err := b.Try(ctx, mysqltest.Request(key))
					assert.NoError(t, err)
				}
			})
			return nil
		}))
		n, err := Cleanup(t.Context(), db, opts.Table, 24*time.Hour)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.NoError(t, lease.Release(t.Context()))
	})
}

// A clean-up does not wait where somebody reads the floor, as those do who make new keys:
// the next of them would have to wait behind it.
func TestCleanupDoesNotWaitForTheFloor(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		b := tableOn(t, db, Options{Table: mysqltest.OwnTable(t, db)})
		oldRows(t, b, 1)
		_, err := b.Cleanup(t.Context(), time.Hour, false)
		require.NoError(t, err)
		oldRows(t, b, 1)
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		var one int
		require.NoError(t, tx.QueryRowContext(t.Context(), "SELECT 1 FROM "+b.table+" WHERE lock_key=x'00' LOCK IN SHARE MODE").Scan(&one))
		for given := time.Second; ; given *= 2 { // a slow server may not come so far in time
			cleaned := make(chan error, 1)
			go func() {
				_, err := b.Cleanup(backendtest.Short(t, given), time.Hour, false)
				cleaned <- err
			}()
			for len(cleaned) == 0 {
				_, err := b.Try(backendtest.Short(t, mysqltest.Patience/2), mysqltest.Request(backendtest.UniqueKey(t)))
				require.NoError(t, err, "a new key")
			}
			err := <-cleaned
			require.ErrorIs(t, err, backend.ErrUnavailable)
			if given < mysqltest.Patience/4 && !strings.Contains(err.Error(), "floor") {
				continue
			}
			require.ErrorContains(t, err, "floor")
			return
		}
	})
}

// A clean-up whose connection is cut off without the server's noticing, at whatever
// statement, keeps nobody from taking keys, new ones or those that it was about to remove.
func TestCleanupCutOff(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		for _, at := range []string{"INSERT IGNORE", "ORDER BY lock_key LIMIT", "GREATEST(token,", "DELETE "} {
			db := mysqltest.UserPool(t, s, "")
			opts := Options{Table: mysqltest.OwnTable(t, db)}
			b := tableOn(t, db, opts)
			oldRows(t, b, 5)
			p := servertest.Proxy(t, s.Addr())
			cfg, err := mysql.ParseDSN(servertest.MySQLDSN(s))
			require.NoError(t, err)
			cfg.Addr = p.Addr()
			away := mysqltest.Pool(t, cfg.FormatDSN(), "")
			p.StallReplies(1, at)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := Cleanup(ctx, away, opts.Table, time.Hour)
				done <- err
			}()
			backendtest.Eventually(t, "the statement has been sent", func() bool { return p.Lost() == 1 })
			p.Freeze()
			for _, key := range []string{"new", "old/0003"} {
				_, err = b.Try(backendtest.Short(t, mysqltest.Patience/2), mysqltest.Request(key))
				require.NoError(t, err, "%s, cut off at %s", key, at)
			}
			cancel()
			p.Resume()
			p.Cut()
			require.Error(t, <-done)
		}
	})
}
