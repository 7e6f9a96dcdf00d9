package config_test

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/config"
	_ "github.com/mortiselock/lock/file"
)

// TestThreeSteps goes through the three files of a change of stores. Neighbours exclude
// each other.
func TestThreeSteps(t *testing.T) {
	t.Setenv("LOCKS", t.TempDir())
	old, next := "file:${LOCKS}/old", "file:${LOCKS}/new"
	open := func(text string) lock.Locker {
		f, err := config.Parse("f", []byte("lockers: {jobs: {ttl: 3s, "+text+"}}"))
		require.NoError(t, err)
		l, err := f.OpenLocker(t.Context(), "jobs", nil)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, l.Close()) })
		return l
	}
	first := open(fmt.Sprintf("url: %q", old))
	second := open(fmt.Sprintf("url: %q, also: %q", old, next))
	third := open(fmt.Sprintf("url: %q", next))
	for _, l := range []lock.Locker{first, third} {
		assert.IsType(t, &lock.Client{}, l)
		lease, err := l.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		_, err = second.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, lock.ErrHeld)
		require.NoError(t, lease.Release(t.Context()))
	}
	lease, err := second.TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	until, _ := lease.Deadline()
	assert.LessOrEqual(t, time.Until(until), 3*time.Second)
	for _, l := range []lock.Locker{first, third} {
		_, err = l.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, lock.ErrHeld)
	}
	require.NoError(t, lease.Release(t.Context()))
}

func TestAlsoIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"empty":      {"lockers:\n  jobs:\n    url: \"mem:\"\n    also: \"\"", `f:4: the also of locker "jobs": it is empty`},
		"the same":   {"lockers:\n  jobs:\n    url: redis://hunter2\n    also: redis://hunter2", "f:4: the also of locker"},
		"unfinished": {"lockers:\n  jobs:\n    url: \"mem:\"\n    also: redis://${hunter2", "f:4: the also of locker"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := config.Parse("f", []byte(c.text))
			require.ErrorIs(t, err, lock.ErrInvalid)
			assert.ErrorContains(t, err, c.want)
			assert.NotContains(t, err.Error(), "hunter2")
		})
	}
	f, err := config.Parse("f", []byte("lockers: {jobs: {url: \"mem:\", also: \"redis://:hunter2@h?nonsense=1\"}}"))
	require.NoError(t, err)
	_, err = f.Locker("")
	require.ErrorIs(t, err, lock.ErrUnsupported)
	assert.ErrorContains(t, err, "OpenLocker")
	_, err = f.Open(t.Context(), "jobs", nil)
	require.ErrorIs(t, err, lock.ErrUnsupported)
	_, err = f.OpenLocker(t.Context(), "jobs", nil)
	require.ErrorIs(t, err, lock.ErrInvalid)
	assert.NotContains(t, err.Error(), "hunter2")
	f, err = config.Parse("f", []byte("lockers: {jobs: {url: \"mem:\", also: \"file:${NOT_SET_ANYWHERE}\"}}"))
	require.NoError(t, err)
	_, err = f.OpenLocker(t.Context(), "jobs", nil)
	require.ErrorIs(t, err, lock.ErrInvalid)
	assert.ErrorContains(t, err, "f:1: the also of")
}

// TestMigratingPage: the files that the page shows are read, and the middle one is that of
// two stores.
func TestMigratingPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/migrating.md")
	require.NoError(t, err)
	files := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	require.Len(t, files, 3)
	for i, text := range files {
		f, err := config.Parse("locks.yaml", []byte(text[1]))
		require.NoError(t, err)
		_, err = f.Locker("jobs")
		assert.Equal(t, i == 1, errors.Is(err, lock.ErrUnsupported), "%v", err)
	}
}
