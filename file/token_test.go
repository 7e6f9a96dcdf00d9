//go:build unix

package filelock

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
)

func counter(t *testing.T) *os.File {
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "counter"), os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestCounterNeverRepeats(t *testing.T) {
	t.Parallel()
	f := counter(t)
	var last uint64
	for _, step := range []struct{ record, floor, want uint64 }{
		{0, 1000, 1000},   // from the clock
		{0, 1000, 1001},   // the clock stands still
		{0, 5, 1002},      // the clock goes back
		{0, 9000, 9000},   // the clock goes on
		{20000, 0, 20001}, // the record knows better than the counter
		{3, 20000, 20002}, // and is outdated
		{0, 20002, 20003}, // the clock is at the last token
		{0, 20010, 20010}, // and just past it
		{0, 0, 20011},     //
		{20011, 0, 20012}, //
		{20012, 20013, 20013},
	} {
		got, err := advance(f, step.record, step.floor)
		require.NoError(t, err)
		require.Equal(t, step.want, got)
		require.Greater(t, got, last)
		last = got
	}
}

// A power loss in the middle of a write leaves one slot torn. The token that was
// answered last is in the other one.
func TestTornSlot(t *testing.T) {
	t.Parallel()
	for i := range int64(2) {
		f := counter(t)
		var tokens []uint64
		for range 5 {
			v, err := advance(f, 0, 100)
			require.NoError(t, err)
			tokens = append(tokens, v)
		}
		newest, err := newestSlot(f)
		require.NoError(t, err)
		torn := (newest + 1) % 2 // the next write goes there
		if i == 1 {
			_, err = f.WriteAt([]byte("00000000000"), torn*slotGap)
		} else {
			_, err = f.WriteAt(make([]byte, slotSize), torn*slotGap)
		}
		require.NoError(t, err)
		v, err := advance(f, 0, 0)
		require.NoError(t, err)
		require.Equal(t, tokens[4]+1, v)
	}
}

func newestSlot(f *os.File) (int64, error) {
	var v [2]uint64
	for i := range v {
		var buf [slotSize]byte
		if _, err := f.ReadAt(buf[:], int64(i)*slotGap); err != nil {
			return 0, err
		}
		v[i], _ = parseSlot(buf[:])
	}
	if v[1] > v[0] {
		return 1, nil
	}
	return 0, nil
}

func TestDamagedCounter(t *testing.T) {
	t.Parallel()
	f := counter(t)
	_, err := f.WriteString("not a counter, and longer than one slot of it")
	require.NoError(t, err)
	v, err := advance(f, 0, 77)
	require.ErrorIs(t, err, errBadCounter)
	require.EqualValues(t, 77, v)
	v, err = advance(f, 0, 77)
	require.NoError(t, err)
	require.EqualValues(t, 78, v)
}

func TestCounterEnds(t *testing.T) {
	t.Parallel()
	f := counter(t)
	v, err := advance(f, maxToken-1, 0)
	require.NoError(t, err)
	require.EqualValues(t, maxToken, v)
	for range 2 {
		_, err = advance(f, 0, 0)
		require.ErrorIs(t, err, backend.ErrPermanent)
	}
	_, err = advance(counter(t), 0, 1<<60)
	require.ErrorIs(t, err, backend.ErrPermanent)
}

// Tokens rise over release, expiry, removal of the record and of the counter.
func TestTokensRise(t *testing.T) {
	t.Parallel()
	b := newBackend(t, t.TempDir())
	var boot fakeBoot
	boot.set(b)
	p := b.placeOf("key")
	var last uint64
	for i := range 60 {
		g, h := mustTry(t, b, request("", time.Second))
		require.Greater(t, g.Token, last)
		last = g.Token
		switch i % 5 {
		case 0:
			require.NoError(t, b.Release(t.Context(), h))
		case 1:
			boot.pass(time.Second)
		case 2:
			require.NoError(t, os.Remove(p.record()))
		case 3:
			require.NoError(t, b.ForceRelease(t.Context(), "key", g.Token))
			require.NoError(t, os.Remove(p.token))
		case 4:
			require.NoError(t, os.RemoveAll(b.dir))
		}
	}
}

func FuzzSlot(f *testing.F) {
	f.Add(formatSlot(1))
	f.Add(formatSlot(maxToken))
	f.Add(make([]byte, slotSize))
	f.Fuzz(func(t *testing.T, data []byte) {
		if v, ok := parseSlot(data); ok {
			require.Equal(t, data, formatSlot(v))
			require.LessOrEqual(t, v, uint64(maxToken))
		}
	})
}
