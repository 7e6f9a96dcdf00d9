package backend_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
)

func TestCutTTL(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]struct {
		without string
		ttl     time.Duration
	}{
		"mem:":                             {"mem:", 0},
		"mem:?ttl=30s":                     {"mem:", 30 * time.Second},
		"mem:?ttl=1m30s&mode=queue":        {"mem:?mode=queue", 90 * time.Second},
		"redis://h?prefix=ttl%3D&ttl=2s":   {"redis://h?prefix=ttl%3D", 2 * time.Second},
		"redis://h?a=1&t%74l=1500ms&b=%26": {"redis://h?a=1&b=%26", 1500 * time.Millisecond},
		"redis://h?mode=ttl&ttls=1s":       {"redis://h?mode=ttl&ttls=1s", 0},
		"file:/x?":                         {"file:/x?", 0},
		"redis://h?TTL=30s":                {"redis://h?TTL=30s", 0}, // which the backend refuses
	} {
		without, ttl, err := backend.CutTTL(raw)
		require.NoError(t, err, raw)
		assert.Equal(t, want.without, without, raw)
		assert.Equal(t, want.ttl, ttl, raw)
	}
	for _, raw := range []string{
		"mem:?ttl", "mem:?ttl=", "mem:?ttl=30", "mem:?ttl=0s", "mem:?ttl=-1s", "mem:?ttl=hunter2", "mem:?ttl=%zz",
		"mem:?ttl=1s&ttl=1s", "redis://:x?ttl=hunter2@h", "mem:?ttl=1s#hunter2", "mem:?ttl=30s;x",
	} {
		_, _, err := backend.CutTTL(raw)
		require.ErrorIs(t, err, backend.ErrInvalid, raw)
		assert.ErrorContains(t, err, "?ttl=30s", "it does not say what to write")
		assert.NotContains(t, err.Error(), "hunter2")
	}
}

// Who opens with a mux of their own and forgets the ttl is told, and does not get the
// default.
func TestTTLIsNoParameterOfABackend(t *testing.T) {
	t.Parallel()
	u, err := backend.ParseURL("x://h?ttl=30s&prefix=p")
	require.NoError(t, err)
	u.Query.String("prefix", "")
	err = u.Query.Done()
	require.ErrorIs(t, err, backend.ErrInvalid)
	assert.ErrorContains(t, err, "backend.CutTTL")

	u, err = backend.ParseURL("x://h?tll=30s")
	require.NoError(t, err)
	u.Query.String("prefix", "")
	assert.ErrorContains(t, u.Query.Done(), `unknown parameter "tll" (accepted are prefix, ttl)`)
}
