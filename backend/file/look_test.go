//go:build unix

package filelock

import (
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
)

// below lists everything in a directory, with what tells whether it was changed.
func below(t *testing.T, dir string) []string {
	t.Helper()
	text, err := listing(dir)
	require.NoError(t, err)
	return slices.Collect(strings.Lines(text))
}

// look asks for everything that can be asked without taking a key, and ends what is not
// held.
func look(t *testing.T, b *files) (held bool) {
	t.Helper()
	rec, err := b.Inspect(t.Context(), "key")
	if err != nil {
		require.ErrorIs(t, err, backend.ErrNotHeld)
	}
	require.NoError(t, b.List(t.Context(), "", func(backend.Record) bool { return true }))
	_, watching := b.Watch(t.Context(), "key")
	require.NoError(t, watching)
	require.ErrorIs(t, b.ForceRelease(t.Context(), "key", rec.Token+1), backend.ErrNotHeld)
	require.ErrorIs(t, b.Revoke(t.Context(), "key", rec.Token+1), backend.ErrNotHeld)
	return err == nil
}

// TestALookChangesNothing: whoever only looks makes no file and no directory.
func TestALookChangesNothing(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	logged := make(chan string, 10)
	b, err := newFiles(t.Context(), filepath.Join(root, "deep", "locks"), slog.New(warnings{logged}))
	require.NoError(t, err)
	defer b.Close()
	require.False(t, look(t, b))
	require.False(t, look(t, b))
	require.Empty(t, below(t, root))
	require.Len(t, logged, 1, "it is said once that there is no such directory")
	require.Contains(t, <-logged, "does not exist")
	_, err = b.Inspect(t.Context(), "key")
	require.ErrorContains(t, err, b.dir+" does not exist")

	_, h := mustTry(t, b, request("", time.Hour))
	before := below(t, root)
	require.True(t, look(t, newBackend(t, b.dir)))
	require.Equal(t, before, below(t, root))
	require.NoError(t, b.Release(t.Context(), h))
	before = below(t, root)
	require.False(t, look(t, newBackend(t, b.dir)))
	require.Equal(t, before, below(t, root))
	require.Empty(t, logged)
}

// TestWhereNoDirectoryCanBe: waiting does not help where the directory can't be made.
func TestWhereNoDirectoryCanBe(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	b := newBackend(t, "/proc/no/such/place")
	_, err := b.Try(t.Context(), request("", time.Second))
	require.ErrorIs(t, err, backend.ErrPermanent)
	require.ErrorContains(t, err, "another directory")
	require.False(t, look(t, b))
}

// TestRootLooks: root may look at the directory of another user, who can use it
// afterwards; it may not write there.
func TestRootLooks(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	dir := filepath.Join(t.TempDir(), "locks")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.Chown(dir, 65534, 65534))
	for path := dir; path != "/" && path != os.TempDir(); path = filepath.Dir(path) {
		if path != dir {
			require.NoError(t, os.Chmod(path, 0o755))
		}
	}
	b := newBackend(t, dir)
	require.False(t, look(t, b))
	_, line := start(t, "nobody holds", dir)
	require.NotEmpty(t, line)
	require.NotContains(t, line, "lock:")
	require.True(t, look(t, b))
	other := request("", time.Second)
	other.Key = "another"
	_, err := b.Try(t.Context(), other)
	require.ErrorIs(t, err, backend.ErrPermanent)
	require.ErrorContains(t, err, "65534")
	require.ErrorContains(t, err, dir)
	for _, file := range below(t, dir) {
		path, _, _ := strings.Cut(file, " ")
		info, err := os.Lstat(path)
		require.NoError(t, err)
		uid, _ := ownerOf(info)
		require.Equal(t, 65534, uid, path)
	}
}
