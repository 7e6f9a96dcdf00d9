//go:build unix

package main

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

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// abandoned are keys whose holder has died, or has released them where of dead holders
// nothing is left. It returns their tokens.
func abandoned(t *testing.T, p place, url string, keys ...string) map[string]uint64 {
	t.Helper()
	b, err := backend.DefaultMux.Open(t.Context(), url, backend.OpenConfig{TTL: takenTTL})
	require.NoError(t, err)
	defer b.Close()
	tokens := map[string]uint64{}
	for _, key := range keys {
		req := backend.Request{Key: key, ID: backend.NewID(), TTL: takenTTL}
		if p.name == "file" {
			req.TTL = b.Guarantees().MinTTL
		}
		g, err := b.Try(t.Context(), req)
		require.NoError(t, err)
		tokens[key] = g.Token
		if p.name == "file" {
			require.Eventually(t, func() bool {
				_, err := b.(backend.Inspector).Inspect(t.Context(), key)
				return errors.Is(err, backend.ErrNotHeld)
			}, hang, 5*time.Millisecond)
			continue
		}
		require.NoError(t, b.Release(t.Context(), backend.HoldOf(req)))
	}
	return tokens
}

// What is kept of keys that nobody uses any more goes; what is held stays, and tokens rise on.
func TestCleanup(t *testing.T) {
	everywhere(t, func(t *testing.T, p place) {
		url := p.url(t)
		held := taken(t, url, "c/held")
		before := abandoned(t, p, url, "c/1", "c/2", "d")
		clean := func(args ...string) cleaned {
			t.Helper()
			status, out, errs := operated(t, url, append([]string{"cleanup", "--json"}, args...)...)
			require.Equal(t, exitOK, status, errs)
			var c cleaned
			require.NoError(t, json.Unmarshal([]byte(out), &c), out)
			return c
		}
		const all = "--older-than=1us"
		want := 0
		switch {
		case p.name == "redlock":
			status, out, errs := operated(t, url, "cleanup", all)
			assert.Equal(t, exitUsage, status)
			assert.Empty(t, out)
			assert.Contains(t, errs, "removes it by itself in time (token_memory in the URL)")
			return
		case p.name == "file" || strings.HasPrefix(p.name, "mysql"):
			want = len(before)
			assert.Equal(t, cleaned{OlderThan: 86400}, clean("--older-than", "24h"), "they are young")
		default:
			assert.True(t, clean(all).KeepsNothing)
			status, out, errs := operated(t, url, "cleanup", all)
			assert.Equal(t, exitOK, status, errs)
			assert.Contains(t, out, "nothing to clean up: ")
		}
		for range 2 { // the first one has changed nothing
			assert.Equal(t, want, clean(all, "--dry-run").Removed)
		}
		assert.Equal(t, want, clean(all).Removed)
		if want > 0 {
			_, out, _ := operated(t, url, "cleanup", all)
			assert.Equal(t, "nothing to clean up: no key was unused for 1µs", out)
			assert.Empty(t, kept(t, url, "d"))
		}
		require.NoError(t, held.Renew(t.Context()), "a hold was removed")
		assert.Equal(t, held.Token(), inspected(t, url, "c/held").Token)
		for key, token := range before {
			again := taken(t, url, key)
			assert.Greater(t, again.Token(), token, key)
			require.NoError(t, again.Release(t.Context()))
		}
		require.NoError(t, held.Release(t.Context()))
	})
}

// With a prefix, what is kept of its free keys goes whatever its age, and the tool says
// what that means.
func TestCleanupForgets(t *testing.T) {
	everywhere(t, func(t *testing.T, p place) {
		url := p.url(t)
		if !strings.HasPrefix(p.name, "mysql") && p.name != "redlock" {
			abandoned(t, p, url, "f/1")
			status, _, errs := operated(t, url, "cleanup", "--forget", "f/")
			assert.Equal(t, exitUsage, status)
			assert.Contains(t, errs, "there is nothing to forget")
			assert.Equal(t, p.name == "file", strings.Contains(errs, "--older-than"), "--older-than removes nothing either: %s", errs)
			return
		}
		held := taken(t, url, "f/held")
		abandoned(t, p, url, "f/1", "g")
		require.NotEmpty(t, kept(t, url, "f/1"))
		status, out, errs := operated(t, url, "cleanup", "--json", "--forget", "f/")
		require.Equal(t, exitOK, status, errs)
		assert.JSONEq(t, `{"forgotten":"f/"}`, out)
		assert.Contains(t, errs, "tokens of the forgotten keys may be repeated")
		assert.Empty(t, kept(t, url, "f/1"))
		assert.NotEmpty(t, kept(t, url, "f/held"))
		assert.NotEmpty(t, kept(t, url, "g"))
		require.NoError(t, held.Renew(t.Context()), "the hold was forgotten")
		require.NoError(t, held.Release(t.Context()))
	})
}

// failing is a backend whose clean-up fails in the middle.
type failing struct{ backend.Backend }

func (failing) Cleanup(context.Context, time.Duration, bool) (int, error) {
	return 7, fmt.Errorf("mysqllock: clean-up: %w: the connection is gone", lock.ErrUnavailable)
}

// A clean-up that fails says what it has done.
func TestCleanupFailsInTheMiddle(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	o := &operation{printer: newPrinter(&out), out: &out}
	e := requireExit(t, exitUnavailable, o.cleanup(t.Context(), failing{}, cleanup{olderThan: time.Hour}))
	assert.Contains(t, e.message, "the connection is gone")
	assert.Contains(t, e.message, "what was kept of 7 keys was removed")
	assert.Empty(t, out.String())
}
