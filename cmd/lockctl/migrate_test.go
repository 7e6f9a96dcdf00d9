//go:build unix

package main

import (
	"encoding/json"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// tokenOn is the token of a grant of the key by a client of its own.
func tokenOn(t *testing.T, url, key string) uint64 {
	t.Helper()
	l, err := lock.Open(t.Context(), url, &lock.Options{TTL: takenTTL})
	require.NoError(t, err)
	defer l.Close()
	lease, err := l.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	defer func() { assert.NoError(t, lease.Release(t.Context())) }()
	return lease.Token()
}

// hourAhead has the store grant tokens that are an hour ahead of the clock, as after a clock
// that was wrong.
func hourAhead(t *testing.T, url string) {
	t.Helper()
	l, err := lock.Open(t.Context(), url, nil)
	require.NoError(t, err)
	defer l.Close()
	r, ok := backend.As[backend.FloorRaiser](l.Backend())
	require.True(t, ok)
	require.NoError(t, r.RaiseFloor(t.Context(), uint64(time.Now().Add(time.Hour).UnixMicro())))
}

// carryFloor runs migrate floor, and returns what it says.
func carryFloor(t *testing.T, from, to string) uint64 {
	t.Helper()
	status, out, errs := operated(t, "", "migrate", "floor", "--json", "--from", from, "--to", to)
	require.Equal(t, exitOK, status, errs)
	var c carried
	require.NoError(t, json.Unmarshal([]byte(out), &c))
	return c.Floor
}

// From a directory to every backend, and from there to a directory again, with tokens that
// follow the clock, and with some that are an hour ahead of it.
func TestMigrateFloor(t *testing.T) {
	everywhere(t, func(t *testing.T, p place) {
		old, next := "file:"+t.TempDir()+"?ttl=20s", p.url(t)
		var last uint64
		carry := func(from, to string) {
			t.Helper()
			last = max(last, tokenOn(t, from, "k"))
			floor := carryFloor(t, from, to)
			assert.GreaterOrEqual(t, floor, last)
			for _, key := range []string{"k", "never used"} {
				token := tokenOn(t, to, key)
				assert.Greater(t, token, floor)
				last = max(last, token)
			}
		}
		carry(old, next)
		carry(next, old)
		hourAhead(t, old)
		carry(old, next)
		carry(next, "file:"+t.TempDir())
	})
}

// One key has run ahead of the clock, and nobody holds it.
func TestMigrateFloorOfAKeyAheadOfTheClock(t *testing.T) {
	for _, c := range []struct {
		place string
		ahead func(t *testing.T, u *backend.URL)
	}{
		{"redis", func(t *testing.T, u *backend.URL) {
			client := goredis.NewClient(&goredis.Options{Addr: u.Hosts[0], Password: u.Password})
			defer client.Close()
			names, err := client.Keys(t.Context(), u.Query.String("prefix", "")+"{m:*}:t").Result()
			require.NoError(t, err)
			require.Len(t, names, 1)
			require.NoError(t, client.IncrBy(t.Context(), names[0], 3_600_000_000).Err())
		}},
		{"mysql table on MySQL", func(t *testing.T, u *backend.URL) {
			_, err := databaseOf(t, u).ExecContext(t.Context(), "UPDATE "+u.Query.String("table", "")+" SET token=token+3600000000 WHERE lock_key='k'")
			require.NoError(t, err)
		}},
		{"mysql row on MariaDB", func(t *testing.T, u *backend.URL) {
			_, err := databaseOf(t, u).ExecContext(t.Context(), "UPDATE "+u.Query.String("table", "")+"_holders SET token=token+3600000000 WHERE k='k'")
			require.NoError(t, err)
		}},
	} {
		t.Run("from "+c.place, func(t *testing.T) {
			everywhere(t, func(t *testing.T, to place) {
				from, next := placeOf(t, c.place).url(t), to.url(t)
				before := tokenOn(t, from, "k")
				u, err := backend.ParseURL(from)
				require.NoError(t, err)
				c.ahead(t, u)
				last := tokenOn(t, from, "k")
				require.Greater(t, last, before+3_600_000_000-1)
				assert.GreaterOrEqual(t, carryFloor(t, from, next), last)
				for _, key := range []string{"k", "another"} {
					assert.Greater(t, tokenOn(t, next, key), last)
				}
			})
		})
	}
}

// placeOf is the place of that name.
func placeOf(t *testing.T, name string) place {
	t.Helper()
	for _, p := range places {
		if p.name == name {
			return p
		}
	}
	t.Fatalf("no place is %s", name)
	return place{}
}

func TestMigrateRefusals(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"migrate"},
		{"migrate", "floor"},
		{"migrate", "floor", "--from", "file:/a"},
		{"migrate", "floor", "--from", "file:/a", "--to", "file:/a"},
		{"migrate", "floor", "--from", "file:/a", "--to", "nonsense:"},
		{"migrate", "floor", "--from", "mem:", "--to", "file:" + t.TempDir()},
		{"migrate", "floor", "file:/a", "file:/b"},
		{"migrate", "floor", "--from", "file:a", "--to", "file:" + t.TempDir()},
		{"migrate", "floor", "--from", "file:" + t.TempDir(), "--to", "file:b"},
		{"migrate", "floor", "--from", "file:" + t.TempDir() + "?ttl=1ns", "--to", "file:" + t.TempDir()},
	} {
		status, _, errs := operated(t, "", args...)
		assert.Equal(t, exitUsage, status, "%v: %s", args, errs)
	}
}
