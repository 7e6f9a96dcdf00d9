//go:build unix

package filelock

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
)

// Whatever somebody puts in the place of a state file, the key is not blocked,
// tokens go on rising, and the holder learns of its loss.
func TestDamagedState(t *testing.T) {
	t.Parallel()
	change := func(f func(r *record)) func(*testing.T, *files, string) {
		return func(t *testing.T, b *files, path string) {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			r := new(record)
			require.NoError(t, json.Unmarshal(data, r))
			f(r)
			data, err = json.Marshal(r)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, data, 0o600))
		}
	}
	put := func(text string) func(*testing.T, *files, string) {
		return func(t *testing.T, _ *files, path string) {
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		}
	}
	cases := map[string]func(t *testing.T, b *files, path string){
		"removed":      func(t *testing.T, _ *files, path string) { require.NoError(t, os.Remove(path)) },
		"empty":        put(""),
		"garbage":      put("\x00\xff\x00garbage"),
		"other JSON":   put(`{"name":"somebody"}`),
		"JSON null":    put("null"),
		"two records":  put(`{"version":1}{"version":1}`),
		"huge":         put(strings.Repeat(" ", maxRecord+1)),
		"truncated":    func(t *testing.T, _ *files, path string) { require.NoError(t, os.Truncate(path, 40)) },
		"other key":    change(func(r *record) { r.Key = "another" }),
		"version 0":    change(func(r *record) { r.Version = 0 }),
		"no boot":      change(func(r *record) { r.runID = runID{} }),
		"token 0":      change(func(r *record) { r.Token = 0 }),
		"token 2^53":   change(func(r *record) { r.Token = 1 << 53 }),
		"no holds":     change(func(r *record) { r.Holds = nil }),
		"twice":        change(func(r *record) { r.Holds = append(r.Holds, r.Holds[0]) }),
		"bad owner":    change(func(r *record) { r.Owner = "me" }),
		"bad id":       change(func(r *record) { r.Holds[0].ID = "xyz" }),
		"lasts 10,000": change(func(r *record) { r.Holds[0].Expires += int64(200 * maxTTL) }),
		"fifo": func(t *testing.T, _ *files, path string) {
			require.NoError(t, os.Remove(path))
			require.NoError(t, syscall.Mkfifo(path, 0o600))
		},
		"dangling link": func(t *testing.T, _ *files, path string) {
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.Symlink("nowhere", path))
		},
		"circular link": func(t *testing.T, _ *files, path string) {
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.Symlink(filepath.Base(path), path))
		},
		"all removed": func(t *testing.T, b *files, _ string) { require.NoError(t, os.RemoveAll(b.dir)) },
	}
	for name, damage := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBackend(t, t.TempDir())
			g, h := mustTry(t, b, request("", time.Hour))
			damage(t, b, b.placeOf("key").record())
			_, err := b.Renew(t.Context(), h)
			require.ErrorIs(t, err, backend.ErrTakenOver)
			require.ErrorIs(t, b.Release(t.Context(), h), backend.ErrNotHeld)
			_, err = b.Inspect(t.Context(), "key")
			require.ErrorIs(t, err, backend.ErrNotHeld)
			require.ErrorIs(t, b.ForceRelease(t.Context(), "key", g.Token), backend.ErrNotHeld)
			g2, h2 := mustTry(t, b, request("", time.Hour))
			require.Greater(t, g2.Token, g.Token)
			_, err = b.Renew(t.Context(), h2)
			require.NoError(t, err)
			require.NoError(t, b.Release(t.Context(), h2))
		})
	}
}

func TestNewerRecordIsRespected(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"version":2,"key":"key"}`,
		`{"version":2,"key":"key","holds":"of another shape"}`,
	} {
		b := newBackend(t, t.TempDir())
		p := b.placeOf("key")
		require.NoError(t, os.MkdirAll(p.dir, 0o700))
		require.NoError(t, os.WriteFile(p.record(), []byte(text), 0o600))
		_, err := b.Try(t.Context(), request("", time.Second))
		require.ErrorIs(t, err, backend.ErrPermanent)
		require.ErrorContains(t, err, p.record())
		data, err := os.ReadFile(p.record())
		require.NoError(t, err)
		require.Equal(t, text, string(data))
	}
}

func TestDirectoryInTheWay(t *testing.T) {
	t.Parallel()
	b := newBackend(t, t.TempDir())
	require.NoError(t, os.MkdirAll(b.placeOf("key").record(), 0o700))
	_, err := b.Try(t.Context(), request("", time.Second))
	require.ErrorIs(t, err, backend.ErrPermanent)
	require.ErrorContains(t, err, "move it away")
}

// What a killed process leaves behind in the middle of an operation is harmless.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	b := newBackend(t, t.TempDir())
	require.NoError(t, b.prepare())
	p := b.placeOf("key")
	require.NoError(t, os.WriteFile(p.temp, []byte("half a rec"), 0o600))
	token, err := b.nextToken(p, 0) // a token that nobody was told
	require.NoError(t, err)
	g, h := mustTry(t, b, request("", time.Second))
	require.Greater(t, g.Token, token)
	require.NoError(t, b.Release(t.Context(), h))
	entries, err := os.ReadDir(filepath.Join(b.dir, tempDir))
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestFailedIsTyped(t *testing.T) {
	t.Parallel()
	for _, e := range []error{syscall.EACCES, syscall.EPERM, syscall.EROFS, syscall.ENOTDIR, syscall.EISDIR, syscall.ENAMETOOLONG} {
		err := failed("doing", &os.PathError{Op: "open", Path: "/x", Err: e})
		require.ErrorIs(t, err, backend.ErrPermanent)
		require.ErrorIs(t, err, e)
	}
	for _, e := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.EIO, errors.New("other")} {
		require.ErrorIs(t, failed("doing", e), backend.ErrUnavailable)
	}
	require.ErrorIs(t, doubtful("doing", syscall.EIO), backend.ErrOutcomeUnknown)
	require.ErrorIs(t, doubtful("doing", syscall.ENOSPC), backend.ErrUnavailable)
}

func FuzzDecode(f *testing.F) {
	r := &record{
		Version: recordVersion, Key: "key", runID: runID{Boot: "boot"}, Token: 7,
		Holder: backend.Holder{Label: "label"},
		Holds:  []hold{{ID: idHash(backend.NewID()), Expires: 12345}},
	}
	data, err := r.encode()
	require.NoError(f, err)
	f.Add(data)
	r.Owner = ownerHash("key", "me")
	r.Holds = append(r.Holds, hold{ID: idHash(backend.NewID()), Expires: 1 << 60})
	data, err = r.encode()
	require.NoError(f, err)
	f.Add(data)
	f.Add([]byte(`{"version":2,"key":"key"}`))
	f.Add([]byte("null"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decode(data, "key")
		if err != nil {
			require.True(t, errors.Is(err, errDamaged) || errors.Is(err, errNewer), "%v", err)
			return
		}
		require.Equal(t, "key", r.Key)
		require.LessOrEqual(t, r.Token, uint64(maxToken))
		require.LessOrEqual(t, len(r.live(runID{Boot: "boot"}, 1000)), backend.MaxHolds)
		require.GreaterOrEqual(t, remaining(r.Holds, 1<<61), time.Duration(0))
		again, err := r.encode()
		require.NoError(t, err)
		_, err = decode(again, "key")
		require.NoError(t, err, "what is accepted can be written and read again")
	})
}
