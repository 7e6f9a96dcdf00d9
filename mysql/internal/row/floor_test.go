package row

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

// apart is a table of the test's own.
func apart() Options { return Options{Table: "floor_" + backend.NewID().Hex()[:12]} }

// What was used, what is new, and what was held counts on from the floor. A hold keeps its
// token, and is named by it.
func TestFloorOfEveryRecord(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		opts := apart()
		a, b := backendOn(t, s, opts), backendOn(t, s, opts)
		admin := mysqltest.AdminPool(t, s)
		once(t, b, "used")
		const more = 450 // more than two statements
		for n := range more {
			mysqltest.Exec(t, admin, recordOfNobody(b.statements, fmt.Sprintf("old %03d", n)))
		}
		holds := map[string]backend.Hold{}
		for _, key := range []string{"released", "revoked before", "revoked after", "forced"} {
			h, g := backendtest.Granted(t, b, mysqltest.Request(key))
			h.Token = g.Token
			holds[key] = h
		}
		require.NoError(t, a.Revoke(t.Context(), "revoked before", holds["revoked before"].Token))

		above := uint64(time.Now().Add(time.Hour).UnixMicro())
		require.NoError(t, a.RaiseFloor(t.Context(), above))
		last, err := b.LastToken(t.Context())
		require.NoError(t, err)
		assert.Equal(t, above, last)
		for _, key := range []string{"used", "old 000", fmt.Sprintf("old %03d", more-1), "new"} {
			require.Greater(t, once(t, b, key), above, key)
		}
		for key, h := range holds {
			rec, err := a.Inspect(t.Context(), key)
			require.NoError(t, err, key)
			require.Equal(t, h.Token, rec.Token, key)
			require.Equal(t, key == "revoked before", rec.Revoked, key)
		}
		require.NoError(t, a.Revoke(t.Context(), "revoked after", holds["revoked after"].Token))
		for _, key := range []string{"revoked before", "revoked after"} {
			_, err = b.Renew(t.Context(), holds[key])
			require.ErrorIs(t, err, backend.ErrNotHeld, key)
		}
		_, err = b.Renew(t.Context(), holds["released"])
		require.NoError(t, err)
		require.NoError(t, b.Release(t.Context(), holds["released"]))
		require.NoError(t, a.ForceRelease(t.Context(), "forced", holds["forced"].Token))
		for key := range holds {
			token := once(t, a, key)
			require.Greater(t, token, above, key)
			require.Less(t, token, above+1000, key)
		}
		require.NoError(t, a.RaiseFloor(t.Context(), above-1), "it is as high already")
		require.Greater(t, once(t, b, "used"), above+1)

		// What removes unused keys leaves the floor.
		require.NoError(t, a.Forget(t.Context(), "used"))
		_, err = a.Cleanup(t.Context(), time.Microsecond, false)
		require.NoError(t, err)
		require.Greater(t, once(t, b, "used"), above)

		require.ErrorIs(t, a.RaiseFloor(t.Context(), largestToken), backend.ErrInvalid)
		require.NoError(t, a.RaiseFloor(t.Context(), largestToken-1))
		for _, key := range []string{"used", "newer"} {
			require.EqualValues(t, largestToken, once(t, b, key))
		}
	})
}

// Keys that are new at the very moment at which the floor is raised.
func TestFloorBesideNewKeys(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		opts := apart()
		a, b := backendOn(t, s, opts), backendOn(t, s, opts)
		above := uint64(time.Now().UnixMicro())
		for round := range 10 {
			above += uint64(time.Hour.Microseconds())
			raised := make(chan error, 1)
			go func() { raised <- a.RaiseFloor(t.Context(), above) }()
			for n := range 10 {
				once(t, b, fmt.Sprint(round, " ", n))
			}
			require.NoError(t, <-raised)
			for n := range 10 {
				require.Greater(t, once(t, b, fmt.Sprint(round, " ", n)), above)
			}
		}
	})
}

// A key that a clock was ahead for counts on from there, and its token is found after it was
// released.
func TestLastTokenOfARecordAheadOfTheClock(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		opts := apart()
		b := backendOn(t, s, opts)
		last, err := b.LastToken(t.Context())
		require.NoError(t, err)
		require.Zero(t, last)
		first := once(t, b, "k")
		mysqltest.Exec(t, mysqltest.AdminPool(t, s), "UPDATE "+opts.Table+"_holders SET token = token + 3600000000 WHERE k = 'k'")
		token := once(t, b, "k")
		require.Greater(t, token, first+3_600_000_000)
		once(t, b, "other")
		last, err = b.LastToken(t.Context())
		require.NoError(t, err)
		require.Equal(t, token, last)
	})
}
