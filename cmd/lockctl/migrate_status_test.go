//go:build unix

package main

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

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
		c := take(old, "a", "last step")
		f = seen(exitTwo, "old and new")
		assert.False(t, f.Both[0].OneHolder)
		require.NoError(t, b.Release(t.Context()))
		f = seen(exitTwo, "old and new")
		assert.False(t, f.Both[0].OneHolder || f.Both[0].Waits, "of one process, and with one label")
		require.NoError(t, c.Release(t.Context()))
		waits := make(chan lock.Lease)
		go func() {
			l, err := both.Acquire(t.Context(), "a")
			assert.NoError(t, err)
			waits <- l
		}()
		require.Eventually(t, func() bool {
			l, err := old.TryAcquire(t.Context(), "a")
			if err == nil {
				assert.NoError(t, l.Release(t.Context()))
			}
			return errors.Is(err, lock.ErrHeld)
		}, hang, 10*time.Millisecond)
		f = seen(exitHeld, "unclear")
		assert.True(t, f.Both[0].Waits)
		require.NoError(t, a.Release(t.Context()))
		a = <-waits
		seen(exitOK, "both")
		require.NoError(t, a.Release(t.Context()))
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
	take := func(l lock.Locker, err error, key string) {
		require.NoError(t, err)
		_, err = l.TryAcquire(t.Context(), key, lock.WithLabel("it"))
		require.NoError(t, err)
	}
	var each [2]*lock.Client
	for i, url := range []string{old, next} {
		var err error
		each[i], err = lock.Open(t.Context(), url, nil)
		take(each[i], err, "in "+url)
	}
	both, err := lock.Both(each[0], each[1])
	take(both, err, "in both")
	defer both.Close()
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
