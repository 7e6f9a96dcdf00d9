package redislock_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/servertest"
)

// A server that forgets held keys when it restarts is told of, once when it is opened.
func TestServerWithoutAppendOnlyFileIsToldOf(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		options []servertest.Option
		want    int
	}{
		"forgets":  {nil, 1},
		"persists": {[]servertest.Option{servertest.WithPersistence()}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			l, err := lock.Open(t.Context(), servertest.Redis(t, c.options...).URL(), &lock.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			require.NoError(t, err)
			for range 3 {
				lease, err := l.Acquire(t.Context(), "k")
				require.NoError(t, err)
				require.NoError(t, lease.Release(t.Context()))
			}
			require.NoError(t, l.Close())
			assert.Equal(t, c.want, strings.Count(log.String(), "append-only"), log.String())
			if c.want > 0 {
				assert.Contains(t, log.String(), "set appendonly to yes", "it does not say what to do")
			}
		})
	}
}
