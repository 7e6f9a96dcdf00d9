package mysqllock

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

// age makes rows look as if they had been used last long ago.
func age(t *testing.T, b *tableBackend, by string) {
	t.Helper()
	execOn(t, b.db, "UPDATE "+b.table+" SET updated=updated-INTERVAL "+by+" WHERE lock_key<>x'00'")
}

func TestCleanup(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		db := userPool(t, s, "")
		opts := &Options{Table: ownTable(t, db)}
		b := tableOn(t, db, opts)
		_, err := CleanupTable(t.Context(), db, opts, 0)
		require.ErrorIs(t, err, backend.ErrInvalid)
		const old = 450 // more than two transactions
		for i := range old {
			hold, _ := granted(t, b, request(fmt.Sprint("old/", i)))
			require.NoError(t, b.Release(t.Context(), hold))
		}
		held, _ := granted(t, b, request("held"))
		age(t, b, "2 DAY")
		recent, _ := granted(t, b, request("recent"))
		require.NoError(t, b.Release(t.Context(), recent))

		n, err := CleanupTable(t.Context(), db, opts, 3*24*time.Hour)
		require.NoError(t, err)
		require.Zero(t, n)
		n, err = CleanupTable(t.Context(), db, opts, 24*time.Hour)
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
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		db := userPool(t, s, "")
		b := tableOn(t, db, &Options{Table: ownTable(t, db)})
		const ahead = int64(1) << 52
		hold, _ := granted(t, b, request("k"))
		require.NoError(t, b.Release(t.Context(), hold))
		execOn(t, db, "UPDATE "+b.table+" SET token=? WHERE lock_key='k'", ahead)
		last, g := granted(t, b, request("k"))
		require.EqualValues(t, ahead+1, g.Token)
		require.NoError(t, b.Release(t.Context(), last))
		for range 3 {
			age(t, b, "2 DAY")
			n, err := b.Cleanup(t.Context(), time.Hour)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			next, g2 := granted(t, b, request("k"))
			require.Greater(t, g2.Token, g.Token)
			g = g2
			require.NoError(t, b.Release(t.Context(), next))
		}
		_, other := granted(t, b, request("never seen before"))
		require.Greater(t, other.Token, uint64(ahead))
	})
}

// Clean-ups beside users of the same rows: tokens rise, no error is seen, and no
// hold is removed.
func TestCleanupBesideUsers(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		db := userPool(t, s, "")
		db.SetMaxOpenConns(16)
		b := tableOn(t, db, &Options{Table: ownTable(t, db)})
		ctx, cancel := context.WithTimeout(t.Context(), storm()/2)
		defer cancel()
		var wg sync.WaitGroup
		removed := make([]int, 2)
		for i := range removed {
			wg.Go(func() {
				for ctx.Err() == nil {
					n, err := b.Cleanup(t.Context(), time.Microsecond)
					assert.NoError(t, err)
					removed[i] += n
				}
			})
		}
		for u := range 8 {
			wg.Go(func() {
				var last uint64
				for i := 0; ctx.Err() == nil; i++ {
					key := fmt.Sprint("k", u/2)
					req := request(key)
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
		t.Logf("removed %v rows", removed)
		require.NotZero(t, removed[0]+removed[1])
	})
}
