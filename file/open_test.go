//go:build unix

package filelock

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
)

func TestURLs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		url, dir string
		err      error
		text     string
	}{
		{url: "file:", dir: ""},
		{url: "file:/var/lib/app", dir: "/var/lib/app"},
		{url: "file:///var/lib/app", dir: "/var/lib/app"},
		{url: "FILE:/var/lib/app", dir: "/var/lib/app"},
		{url: "file:locks", dir: "locks"},
		{url: "file:../locks", dir: "../locks"},
		{url: "file:/with%20space", dir: "/with space"},
		{url: "file://host/var/lib/app", err: backend.ErrInvalid, text: `"host"`},
		{url: "file://localhost/var/lib/app", err: backend.ErrInvalid, text: "file:///"},
		{url: "file://locks", err: backend.ErrInvalid, text: "file:relative/directory"},
		{url: "file://me:pass@/locks", err: backend.ErrInvalid, text: "no password"},
		{url: "file:/locks?mode=0700", err: backend.ErrInvalid, text: `unknown parameter "mode" (accepted is ttl)`},
		{url: "file:~/locks", err: backend.ErrInvalid, text: "only a shell replaces ~"},
		{url: "file:%7Eroot/locks", err: backend.ErrInvalid, text: "file:$HOME/..."},
		{url: "file:./~/locks", dir: "./~/locks"},
		{url: "file:/var/~", dir: "/var/~"},
		{url: "file:/a%00b", err: backend.ErrInvalid, text: "NUL"},
	} {
		u, err := backend.ParseURL(c.url)
		require.NoError(t, err, c.url)
		dir, err := dirOf(u)
		if c.err != nil {
			require.ErrorIs(t, err, c.err, c.url)
			require.ErrorContains(t, err, c.text, c.url)
			require.NotContains(t, err.Error(), "pass@", c.url)
			continue
		}
		require.NoError(t, err, c.url)
		require.Equal(t, c.dir, dir, c.url)
	}
}

func TestSchemeIsRegistered(t *testing.T) {
	t.Parallel()
	require.Contains(t, backend.DefaultMux.Schemes(), Scheme)
	dir := t.TempDir()
	b, err := backend.DefaultMux.Open(t.Context(), "file:"+filepath.Join(dir, "new", "locks"), backend.OpenConfig{})
	require.NoError(t, err)
	_, err = b.Try(t.Context(), request("", time.Second))
	require.NoError(t, err)
	require.NoError(t, b.Close())
	info, err := os.Stat(filepath.Join(dir, "new", "locks"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o700), info.Mode().Perm())
}

func TestRelativeDirectoryIsResolvedAtOpen(t *testing.T) {
	wd := t.TempDir()
	t.Chdir(wd)
	b := newBackend(t, "locks")
	require.True(t, filepath.IsAbs(b.dir))
	t.Chdir(t.TempDir())
	mustTry(t, b, request("", time.Second))
	require.DirExists(t, filepath.Join(wd, "locks", holdDir))
}

func TestDefaultDir(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("XDG_RUNTIME_DIR", filepath.Join(home, "gone at logout"))
	dir, err := DefaultDir()
	require.NoError(t, err)
	require.Equal(t, filepath.Join(home, ".local/state/mortise/locks"), dir)
	require.NoDirExists(t, dir)
	b := newBackend(t, "")
	require.Equal(t, dir, b.dir)
	require.NoDirExists(t, dir)
	mustTry(t, b, request("", time.Second))

	require.NoError(t, os.Chmod(dir, 0o770))
	_, err = newFiles(t.Context(), "", nil)
	require.ErrorIs(t, err, backend.ErrPermanent)
	require.ErrorContains(t, err, "chmod")

	t.Setenv("XDG_STATE_HOME", filepath.Join(home, "state"))
	dir, err = DefaultDir()
	require.NoError(t, err)
	require.Equal(t, filepath.Join(home, "state/mortise/locks"), dir)
	t.Setenv("XDG_STATE_HOME", "relative")
	_, err = DefaultDir()
	require.ErrorIs(t, err, backend.ErrPermanent)
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("HOME", "")
	_, err = DefaultDir()
	require.ErrorIs(t, err, backend.ErrPermanent)
	require.ErrorContains(t, err, "file:/directory")
}

func TestBadDirectories(t *testing.T) {
	t.Parallel()
	file := func(t *testing.T, dir string) string {
		path := filepath.Join(dir, "file")
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		return path
	}
	for name, prepare := range map[string]func(t *testing.T, dir string) string{
		"a file":        file,
		"below a file":  func(t *testing.T, dir string) string { return filepath.Join(file(t, dir), "locks") },
		"for everybody": func(t *testing.T, dir string) string { require.NoError(t, os.Chmod(dir, 0o777)); return dir },
		"guards is file": func(t *testing.T, dir string) string {
			require.NoError(t, os.Rename(file(t, dir), filepath.Join(dir, guardDir)))
			return dir
		},
		"guards is link": func(t *testing.T, dir string) string {
			require.NoError(t, os.Symlink(t.TempDir(), filepath.Join(dir, guardDir)))
			return dir
		},
		"holds for all": func(t *testing.T, dir string) string {
			require.NoError(t, os.Mkdir(filepath.Join(dir, holdDir), 0o700))
			require.NoError(t, os.Chmod(filepath.Join(dir, holdDir), 0o777))
			return dir
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			_, err := NewBackend(t.Context(), prepare(t, dir), nil)
			require.ErrorIs(t, err, backend.ErrPermanent)
			require.ErrorContains(t, err, dir)
		})
	}
}

func TestStickyDirectoryForEverybody(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o777|fs.ModeSticky)) // like /tmp
	newBackend(t, dir)
}

func TestOpenWithCancelledContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := filepath.Join(t.TempDir(), "locks")
	_, err := NewBackend(ctx, dir, &Options{})
	require.ErrorIs(t, err, context.Canceled)
	require.NoDirExists(t, dir)
}

func TestDamageIsLogged(t *testing.T) {
	t.Parallel()
	logged := make(chan string, 10)
	b, err := newFiles(t.Context(), t.TempDir(), slog.New(warnings{logged}))
	require.NoError(t, err)
	mustTry(t, b, request("", time.Hour))
	require.Empty(t, logged)
	require.NoError(t, os.WriteFile(b.placeOf("key").record(), nil, 0o600))
	mustTry(t, b, request("", time.Hour))
	require.Len(t, logged, 1)
	require.Contains(t, <-logged, "damaged")
	require.NoError(t, b.Close())
}

// warnings collects what is logged at the level of a warning and above.
type warnings struct{ to chan string }

func (w warnings) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (w warnings) Handle(_ context.Context, r slog.Record) error {
	w.to <- r.Message
	return nil
}
func (w warnings) WithAttrs([]slog.Attr) slog.Handler { return w }
func (w warnings) WithGroup(string) slog.Handler      { return w }

// FuzzPlaceOf: two keys have two records, also where case does not count in names;
// no path of one is above a path of another or leaves the directory; and all names
// are short and plain.
func FuzzPlaceOf(f *testing.F) {
	keys := []string{
		"a", "A", "a ", " a", "a/b", "a/", "a//b", "../a", "a/../b", "..", ".", "/etc/passwd", "a\\b", "C:", "CON", "nul", "aux.txt", "~a", "-a", "a:b", "a*", "a.",
		"\u00e4", "a\u0308", "\u00c4", "\u0131", "\u0130", "\U0001f512", "\ufffd", "\u200b", "\ufeffa", strings.Repeat("x", 255), strings.Repeat("x", 512),
	}
	for i, a := range keys {
		f.Add(a, keys[(i+1)%len(keys)])
		f.Add(a, a+"/b")
	}
	const dir = "/locks"
	b := &files{dir: dir}
	f.Fuzz(func(t *testing.T, k, l string) {
		if backend.ValidateKey(k) != nil || backend.ValidateKey(l) != nil {
			return
		}
		x, y := b.placeOf(k), b.placeOf(l)
		assert.Equal(t, k == l, strings.EqualFold(x.record(), y.record()), "%q and %q", k, l)
		paths := []string{x.record(), x.guard, x.token, x.temp}
		others := []string{y.record(), y.guard, y.token, y.temp}
		for i, p := range paths {
			rel, err := filepath.Rel(dir, p)
			assert.NoError(t, err)
			assert.True(t, filepath.IsLocal(rel) && filepath.Clean(p) == p, "%q", p)
			assert.LessOrEqual(t, len(filepath.Base(p)), 80)
			assert.Empty(t, strings.Trim(rel, "abcdefghijklmnopqrstuvwxyz0123456789./"), "%q", rel)
			for j, o := range others {
				assert.False(t, strings.HasPrefix(o, p+string(filepath.Separator)), "%q is above %q", p, o)
				if i != j {
					assert.NotEqual(t, p, o)
				}
			}
		}
		assert.Equal(t, k, x.key)
	})
}
