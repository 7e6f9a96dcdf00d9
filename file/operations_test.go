//go:build unix

package filelock

import (
	"context"
	"fmt"
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

func TestGrantRefusalRelease(t *testing.T) {
	t.Parallel()
	b := newBackend(t, t.TempDir())
	before := b.clock.Now()
	r := request("", 10*time.Second)
	g, h := mustTry(t, b, r)
	require.NotZero(t, g.Token)
	require.Equal(t, 1, g.Holds)
	require.Equal(t, backend.ValidFor(r.TTL), g.For)
	require.False(t, g.Sent.Before(before))
	require.False(t, b.clock.Now().Before(g.Sent))

	_, err := b.Try(t.Context(), request("", time.Second))
	var held *backend.HeldError
	require.ErrorAs(t, err, &held)
	require.Equal(t, "key", held.Key)
	require.Equal(t, "label", held.Holder.Label)
	require.Equal(t, 7, held.Holder.PID)
	require.WithinDuration(t, time.Now(), held.Holder.Since, time.Minute)
	require.Positive(t, held.Remaining)
	require.LessOrEqual(t, held.Remaining, r.TTL)

	require.NoError(t, b.Release(t.Context(), h))
	require.Nil(t, stateOf(t, b, "key"), "a free key has no state file")
	require.ErrorIs(t, b.Release(t.Context(), h), backend.ErrNotHeld)

	g2, _ := mustTry(t, b, request("", time.Second))
	require.Greater(t, g2.Token, g.Token)
	require.LessOrEqual(t, g2.Token, uint64(maxToken))
}

// The instant of a grant is not later than the start of the record's expiry: the
// record outlives the holder's deadline.
func TestRecordOutlivesDeadline(t *testing.T) {
	t.Parallel()
	b := newBackend(t, t.TempDir())
	for range 20 {
		boot := b.boot.now() // first: a pause between the two makes the record no shorter
		clock := b.clock.Now()
		r := request("", time.Second)
		g, h := mustTry(t, b, r)
		rec, _, err := b.load(b.placeOf("key"))
		require.NoError(t, err)
		start := rec.Holds[0].Expires - int64(r.TTL) - boot // since the readings above
		require.LessOrEqual(t, int64(g.Sent.Sub(clock)), start+int64(time.Millisecond))
		require.NoError(t, b.Release(t.Context(), h))
	}
}

func TestRepeatsChangeNothingButExpiry(t *testing.T) {
	t.Parallel()
	var boot fakeBoot
	b := newBackend(t, t.TempDir())
	boot.set(b)
	for _, owner := range []string{"", "owner"} {
		r := request(owner, 10*time.Second)
		r.Key = "key of " + owner
		g, h := mustTry(t, b, r)
		boot.pass(4 * time.Second)
		again, _ := mustTry(t, b, r)
		require.Equal(t, g.Token, again.Token)
		require.Equal(t, 1, again.Holds)
		rec, err := b.Inspect(t.Context(), r.Key)
		require.NoError(t, err)
		require.Equal(t, 10*time.Second, rec.Remaining)

		r.TTL = time.Second // never shorter
		mustTry(t, b, r)
		rec, err = b.Inspect(t.Context(), r.Key)
		require.NoError(t, err)
		require.Equal(t, 10*time.Second, rec.Remaining)
		require.NoError(t, b.Release(t.Context(), h))
	}
}

func TestReentrancyAcrossBackends(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var boot fakeBoot
	b1, b2 := newBackend(t, dir), newBackend(t, dir)
	boot.set(b1)
	boot.set(b2)

	g1, h1 := mustTry(t, b1, request("me", 10*time.Second))
	g2, h2 := mustTry(t, b2, request("me", time.Second))
	require.Equal(t, g1.Token, g2.Token)
	require.Equal(t, 2, g2.Holds)
	for _, owner := range []string{"", "you", "me "} {
		_, err := b2.Try(t.Context(), request(owner, time.Second))
		require.ErrorIs(t, err, backend.ErrHeld, "owner %q", owner)
	}
	rec, err := b2.Inspect(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, backend.Record{Key: "key", Token: g1.Token, Holds: 2, Waiters: -1, Remaining: 10 * time.Second, Holder: rec.Holder}, rec)

	// Each hold has its own expiry.
	boot.pass(2 * time.Second)
	_, err = b2.Renew(t.Context(), h2)
	require.ErrorIs(t, err, backend.ErrExpired)
	rec, err = b1.Inspect(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, 1, rec.Holds)

	g3, h3 := mustTry(t, b2, request("me", 20*time.Second))
	require.Equal(t, g1.Token, g3.Token)
	require.Equal(t, 2, g3.Holds)
	require.NoError(t, b1.Release(t.Context(), h1))
	_, err = b1.Try(t.Context(), request("", time.Second))
	require.ErrorIs(t, err, backend.ErrHeld, "one hold is left")
	require.NoError(t, b2.Release(t.Context(), h3))
	g4, _ := mustTry(t, b1, request("", time.Second))
	require.Greater(t, g4.Token, g1.Token)
}

func TestTooManyHolds(t *testing.T) {
	t.Parallel()
	b := newBackend(t, t.TempDir())
	var last backend.Hold
	for i := range backend.MaxHolds {
		g, h := mustTry(t, b, request("me", 10*time.Second))
		require.Equal(t, i+1, g.Holds)
		last = h
	}
	before := stateOf(t, b, "key")
	_, err := b.Try(t.Context(), request("me", 10*time.Second))
	require.ErrorIs(t, err, backend.ErrTooManyHolds)
	require.Equal(t, before, stateOf(t, b, "key"))
	require.NoError(t, b.Release(t.Context(), last))
	mustTry(t, b, request("me", 10*time.Second))
}

func TestRenew(t *testing.T) {
	t.Parallel()
	var boot fakeBoot
	b := newBackend(t, t.TempDir())
	boot.set(b)
	_, h := mustTry(t, b, request("", 10*time.Second))
	for range 50 {
		boot.pass(time.Second)
		v, err := b.Renew(t.Context(), h)
		require.NoError(t, err)
		require.Equal(t, backend.ValidFor(h.TTL), v.For)
	}
	rec, err := b.Inspect(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, 10*time.Second, rec.Remaining, "renewals do not pile up")

	short := h
	short.TTL = time.Second
	_, err = b.Renew(t.Context(), short)
	require.NoError(t, err)
	rec, err = b.Inspect(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, 10*time.Second, rec.Remaining, "a renewal never shortens")

	// Expired and taken by nobody: never brought back.
	boot.pass(10 * time.Second)
	before := stateOf(t, b, "key")
	_, err = b.Renew(t.Context(), h)
	require.ErrorIs(t, err, backend.ErrExpired)
	require.ErrorIs(t, err, backend.ErrNotHeld)
	require.Equal(t, before, stateOf(t, b, "key"))
	_, err = b.Inspect(t.Context(), "key")
	require.ErrorIs(t, err, backend.ErrNotHeld)
	// A release finds out too, and takes the rest away.
	require.ErrorIs(t, b.Release(t.Context(), h), backend.ErrNotHeld)
	require.Nil(t, stateOf(t, b, "key"))
}

func TestOthersAreNotTouched(t *testing.T) {
	t.Parallel()
	var boot fakeBoot
	b := newBackend(t, t.TempDir())
	boot.set(b)
	old, oldHold := mustTry(t, b, request("me", time.Second))
	boot.pass(time.Second)
	now, nowHold := mustTry(t, b, request("you", 10*time.Second))
	require.Greater(t, now.Token, old.Token)

	before := stateOf(t, b, "key")
	_, err := b.Renew(t.Context(), oldHold)
	require.ErrorIs(t, err, backend.ErrTakenOver)
	require.ErrorIs(t, b.Release(t.Context(), oldHold), backend.ErrNotHeld)
	require.ErrorIs(t, b.ForceRelease(t.Context(), "key", old.Token), backend.ErrNotHeld)
	stranger := backend.HoldOf(request("you", time.Second))
	stranger.Token = now.Token
	_, err = b.Renew(t.Context(), stranger)
	require.ErrorIs(t, err, backend.ErrNotHeld)
	require.ErrorIs(t, b.Release(t.Context(), stranger), backend.ErrNotHeld)
	_, err = b.Try(t.Context(), request("", time.Second))
	require.ErrorIs(t, err, backend.ErrHeld)
	require.Equal(t, before, stateOf(t, b, "key"))

	require.NoError(t, b.ForceRelease(t.Context(), "key", now.Token))
	require.ErrorIs(t, b.ForceRelease(t.Context(), "key", now.Token), backend.ErrNotHeld)
	_, err = b.Renew(t.Context(), nowHold)
	require.ErrorIs(t, err, backend.ErrTakenOver)
	require.Nil(t, stateOf(t, b, "key"), "a lost hold is not brought back")
}

func TestReboot(t *testing.T) {
	t.Parallel()
	b := newBackend(t, t.TempDir())
	g, h := mustTry(t, b, request("me", time.Hour))
	b.boot.run.Boot = "another boot"
	_, err := b.Inspect(t.Context(), "key")
	require.ErrorIs(t, err, backend.ErrNotHeld)
	_, err = b.Renew(t.Context(), h)
	require.ErrorIs(t, err, backend.ErrNotHeld)
	g2, _ := mustTry(t, b, request("me", time.Hour))
	require.Greater(t, g2.Token, g.Token)
	require.Equal(t, 1, g2.Holds, "the same owner begins anew")
}

func TestKeysAreApart(t *testing.T) {
	t.Parallel()
	b := newBackend(t, t.TempDir())
	names := []string{"a", "A", "a ", "a/b", "a/b/c", "../a", "..", ".", "%61", "ä", "a\u0308", "CON", "key\\x", "😀"}
	for i := range 300 { // more than there are shards
		names = append(names, fmt.Sprintf("key %d", i))
	}
	for _, k := range names {
		r := request("", 10*time.Second)
		r.Key = k
		mustTry(t, b, r)
	}
	for _, k := range names {
		rec, err := b.Inspect(t.Context(), k)
		require.NoError(t, err)
		require.Equal(t, k, rec.Key)
	}
}

func TestCancelledContextChangesNothing(t *testing.T) {
	t.Parallel()
	b := newBackend(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.Try(ctx, request("", time.Second))
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, backend.ErrUnavailable, "it is known that nothing was done")
	require.Empty(t, below(t, b.dir))

	_, h := mustTry(t, b, request("", time.Hour))
	before := stateOf(t, b, "key")
	_, err = b.Renew(ctx, h)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, b.Release(ctx, h), context.Canceled)
	require.ErrorIs(t, b.ForceRelease(ctx, "key", h.Token), context.Canceled)
	_, err = b.Inspect(ctx, "key")
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, before, stateOf(t, b, "key"))
}

func TestNothingSecretOnDiskOrInErrors(t *testing.T) {
	t.Parallel()
	b := newBackend(t, t.TempDir())
	r := request("a secret owner", time.Hour)
	_, h := mustTry(t, b, r)
	state := string(stateOf(t, b, "key"))
	_, held := b.Try(t.Context(), request("another secret", time.Second))
	require.NoError(t, b.Release(t.Context(), h))
	_, lost := b.Renew(t.Context(), h)
	for _, text := range []string{state, held.Error(), lost.Error()} {
		require.NotContains(t, text, "secret")
		require.NotContains(t, text, r.ID.Hex())
	}
	info, err := os.Stat(b.placeOf("key").guard)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	info, err = os.Stat(b.dir + "/" + holdDir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}

func TestGuarantees(t *testing.T) {
	t.Parallel()
	b := newBackend(t, t.TempDir())
	g := b.Guarantees()
	require.Equal(t, g, b.Guarantees())
	require.NoError(t, g.CheckTTL(minTTL))
	require.ErrorIs(t, g.CheckTTL(minTTL-time.Millisecond), backend.ErrInvalid)
	require.ErrorIs(t, g.CheckTTL(time.Second+time.Microsecond), backend.ErrInvalid)
	var _ backend.Watcher = b
	var _ backend.Inspector = b
	var _ backend.ForceReleaser = b
}

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
