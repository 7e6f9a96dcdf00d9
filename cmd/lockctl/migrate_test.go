//go:build unix

package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
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

// From a directory to every backend, and from there to a directory again.
func TestMigrateFloor(t *testing.T) {
	everywhere(t, func(t *testing.T, p place) {
		old, next := "file:"+t.TempDir()+"?ttl=20s", p.url(t)
		for _, way := range [][2]string{{old, next}, {next, old}} {
			last := tokenOn(t, way[0], "k")
			status, out, errs := operated(t, "", "migrate", "floor", "--json", "--from", way[0], "--to", way[1])
			require.Equal(t, exitOK, status, errs)
			var c carried
			require.NoError(t, json.Unmarshal([]byte(out), &c))
			assert.GreaterOrEqual(t, c.Floor, last)
			assert.Greater(t, tokenOn(t, way[1], "k"), c.Floor)
		}
	})
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
