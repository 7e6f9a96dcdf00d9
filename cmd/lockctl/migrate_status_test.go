//go:build unix

package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
)

// TestMigrateStatus goes through the steps of a change of the backend.
func TestMigrateStatus(t *testing.T) {
	everywhere(t, func(t *testing.T, p place) {
		urls := [2]string{"file:" + t.TempDir(), p.url(t)}
		open := func(url string) *lock.Client {
			l, err := lock.Open(t.Context(), url, &lock.Options{TTL: takenTTL})
			require.NoError(t, err)
			return l
		}
		take := func(l lock.Locker, key, label string) lock.Lease {
			lease, err := l.TryAcquire(t.Context(), key, lock.WithLabel(label))
			require.NoError(t, err)
			return lease
		}
		seen := func(want int, step string) progressed {
			status, out, errs := operated(t, "", "migrate", "status", "--json", "--from", urls[0], "--to", urls[1], "--key", "a", "--key", "b")
			require.Equal(t, want, status, "%s\n%s", out, errs)
			var f progressed
			require.NoError(t, json.Unmarshal([]byte(out), &f))
			assert.Equal(t, step, f.Step)
			assert.Empty(t, f.Moving)
			assert.NotEmpty(t, f.Unseen)
			return f
		}
		old, next := open(urls[0]), open(urls[1])
		defer old.Close()
		defer next.Close()
		both, err := lock.Both(open(urls[0]), open(urls[1]))
		require.NoError(t, err)
		defer both.Close()

		seen(exitOK, "nobody")
		a := take(old, "a", "first step")
		f := seen(exitFree, "old")
		require.Len(t, f.Old, 1)
		assert.Equal(t, "first step", f.Old[0].Label)
		assert.NotNil(t, f.Old[0].Since)
		b := take(both, "b", "second step")
		f = seen(exitFree, "old and both")
		require.Len(t, f.Both, 1)
		assert.True(t, f.Both[0].OneHolder)
		require.NoError(t, a.Release(t.Context()))
		seen(exitOK, "both")
		a = take(next, "a", "last step")
		seen(exitOK, "both and new")
		require.NoError(t, b.Release(t.Context()))
		f = seen(exitOK, "new")
		require.Len(t, f.New, 1)
		assert.Equal(t, "last step", f.New[0].Label)
		b = take(old, "b", "first step")
		seen(exitTwo, "old and new")
		c := take(old, "a", "does not know of it")
		f = seen(exitFree, "old and both")
		assert.False(t, f.Both[0].OneHolder)
		require.NoError(t, b.Release(t.Context()))
		f = seen(exitHeld, "unclear")
		assert.False(t, f.Both[0].OneHolder)
		for _, l := range []lock.Lease{a, c} {
			require.NoError(t, l.Release(t.Context()))
		}
	})
}

// TestMigrateStatusLists without --key what both backends list, and prints a table.
func TestMigrateStatusLists(t *testing.T) {
	t.Parallel()
	old, next := "file:"+t.TempDir(), "file:"+t.TempDir()
	args := []string{"migrate", "status", "--from", old, "--to", next}
	status, out, errs := operated(t, "", args...)
	require.Equal(t, exitOK, status, errs)
	assert.Contains(t, out, "seen: nobody; not seen: who holds no key at this moment")
	for _, url := range []string{old, next} {
		l, err := lock.Open(t.Context(), url, nil)
		require.NoError(t, err)
		defer l.Close()
		for _, key := range []string{"in both", "in " + url} {
			_, err := l.TryAcquire(t.Context(), key, lock.WithLabel("it"))
			require.NoError(t, err)
		}
	}
	status, out, errs = operated(t, "", args...)
	require.Equal(t, exitTwo, status)
	assert.Contains(t, errs, "do not exclude each other")
	assert.Regexp(t, `(?m)^old +in file:\S+ +\S+ +it +\S+ +\d+$`, out)
	assert.Regexp(t, `(?m)^both +in both +\S+ +it +\S+ +\d+$`, out)
	assert.Regexp(t, `(?m)^new +in file:\S+ +\S+ +it +\S+ +\d+$`, out)
	for _, args := range [][]string{{"migrate", "status"}, {"migrate", "status", "--from", old, "--to", next, "--key", ""}} {
		status, _, _ := operated(t, "", args...)
		assert.Equal(t, exitUsage, status)
	}
}
