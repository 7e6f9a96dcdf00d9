package backend_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
)

func TestKeys(t *testing.T) {
	for _, key := range []string{"a", "a/b", "a ", "é", "e\u0301", "😀", "{tag}", "%_*", strings.Repeat("x", 512)} {
		assert.NoError(t, backend.ValidateKey(key), "%q", key)
	}
	for _, key := range []string{"", strings.Repeat("x", 513), "\xff", "a\nb", "\x00", "\u0085", "a\x7f"} {
		assert.ErrorIs(t, backend.ValidateKey(key), backend.ErrInvalid, "%q", key)
	}
	err := backend.ValidateOwner("secret\n")
	require.ErrorIs(t, err, backend.ErrInvalid)
	assert.NotContains(t, err.Error(), "secret")
}

func TestIDsAreDistinctAndSecret(t *testing.T) {
	seen := map[backend.ID]bool{}
	for range 1000 {
		id := backend.NewID()
		require.False(t, seen[id])
		seen[id] = true
		back, err := backend.ParseID(id.Hex())
		require.NoError(t, err)
		require.Equal(t, id, back)
		req := backend.Request{Key: "k", ID: id}
		for _, text := range []string{fmt.Sprint(id), fmt.Sprintf("%x %v %+v %#v %s %d", id, id, req, req, id, id)} {
			require.NotContains(t, text, id.Hex())
			require.NotContains(t, text, fmt.Sprint([16]byte(id)))
		}
		j, err := json.Marshal(req)
		require.NoError(t, err)
		require.NotContains(t, string(j), id.Hex())
	}
	assert.True(t, backend.ID{}.IsZero())
	for _, s := range []string{"", "00", strings.Repeat("g", 32), strings.Repeat("0", 31)} {
		_, err := backend.ParseID(s)
		assert.ErrorIs(t, err, backend.ErrInvalid)
	}
}

func TestLossesMatchWhatTheyAre(t *testing.T) {
	for _, err := range []error{backend.ErrExpired, backend.ErrTakenOver, backend.ErrSessionLost, backend.ErrMaxHold} {
		wrapped := fmt.Errorf("x: %w", err)
		assert.ErrorIs(t, wrapped, err)
		assert.ErrorIs(t, wrapped, backend.ErrLost)
		assert.ErrorIs(t, wrapped, backend.ErrNotHeld)
		assert.NotErrorIs(t, wrapped, backend.ErrHeld)
	}
	assert.NotErrorIs(t, backend.ErrExpired, backend.ErrTakenOver)
	assert.NotErrorIs(t, backend.ErrNotHeld, backend.ErrLost)
	assert.NotErrorIs(t, backend.ErrClosed, backend.ErrLost)
}

func TestHeldErrorTellsWho(t *testing.T) {
	since := time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)
	err := error(&backend.HeldError{Key: "nightly", Remaining: 1500 * time.Millisecond,
		Holder: backend.Holder{Label: "backup", Host: "db1", PID: 312, Since: since}})
	assert.ErrorIs(t, err, backend.ErrHeld)
	assert.Equal(t, `lock: "nightly" is held by "backup" (host db1, pid 312) since 2026-11-20T03:00:00Z, for another 1.5s unless renewed`, err.Error())
	assert.Equal(t, `lock: "k" is held by an unnamed holder`, (&backend.HeldError{Key: "k"}).Error())
	assert.Equal(t, `lock: "k" is held by host h`, (&backend.HeldError{Key: "k", Holder: backend.Holder{Host: "h"}}).Error())
}

func TestNearestTTLIsAccepted(t *testing.T) {
	s := time.Second
	for _, c := range []struct {
		g          backend.Guarantees
		want, near time.Duration
	}{
		{backend.Guarantees{}, 30 * s, 30 * s},
		{backend.Guarantees{MinTTL: s, MaxTTL: 10 * s}, 30 * s, 10 * s},
		{backend.Guarantees{MinTTL: 40 * s}, 30 * s, 40 * s},
		{backend.Guarantees{TTLGrain: 7 * s}, 30 * s, 28 * s},
		{backend.Guarantees{TTLGrain: s}, s / 2, s},
		{backend.Guarantees{MinTTL: 5 * s, TTLGrain: 4 * s}, s, 8 * s},
	} {
		near := c.g.NearestTTL(c.want)
		assert.Equal(t, c.near, near, "%+v", c)
		assert.NoError(t, c.g.CheckTTL(near), "%+v", c)
	}
}

func TestCheckTTL(t *testing.T) {
	g := backend.Guarantees{Name: "x", MinTTL: time.Second, MaxTTL: time.Minute, TTLGrain: time.Second}
	assert.NoError(t, g.CheckTTL(time.Second))
	assert.NoError(t, g.CheckTTL(time.Minute))
	for _, ttl := range []time.Duration{0, -1, 1, time.Second - 1, time.Second + 1, 61 * time.Second} {
		err := g.CheckTTL(ttl)
		require.ErrorIs(t, err, backend.ErrInvalid, ttl)
	}
	assert.Contains(t, g.CheckTTL(time.Hour).Error(), "multiples of 1s from 1s to 1m0s")
	g.LongerTTL = "raise the limit"
	assert.Contains(t, g.CheckTTL(time.Hour).Error(), "from 1s to 1m0s; for a longer one, raise the limit")
	assert.NotContains(t, g.CheckTTL(time.Second/2).Error(), "raise the limit")
}

func TestMux(t *testing.T) {
	var m backend.Mux
	boom := errors.New("boom")
	m.Register("Some", func(_ context.Context, u *backend.URL, cfg backend.OpenConfig) (backend.Backend, error) {
		assert.Equal(t, "h", u.Hosts[0])
		assert.NotNil(t, cfg.Logger)
		return nil, boom
	})
	_, err := m.Open(t.Context(), "SOME://h", backend.OpenConfig{})
	require.ErrorIs(t, err, boom)
	_, err = m.Open(t.Context(), "other://me:hunter2@h", backend.OpenConfig{})
	require.ErrorIs(t, err, backend.ErrInvalid)
	assert.Contains(t, err.Error(), "known schemes: some")
	assert.NotContains(t, err.Error(), "hunter2")
	_, err = m.Open(t.Context(), "redis://h", backend.OpenConfig{})
	assert.Contains(t, err.Error(), `add the import _ "github.com/mortiselock/lock/redis"`)
	assert.Panics(t, func() {
		m.Register("some", func(context.Context, *backend.URL, backend.OpenConfig) (backend.Backend, error) { return nil, nil })
	})
	assert.Panics(t, func() { m.Register("nil", nil) })
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = m.Open(ended, "some://h", backend.OpenConfig{})
	assert.ErrorIs(t, err, context.Canceled)
}
