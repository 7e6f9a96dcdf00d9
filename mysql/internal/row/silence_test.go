package row

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
)

// A server that is silent from the start has refused nobody, and a larger pool would
// not help: with sessions that are open already, and without any.
func TestRowSilenceIsNotHeld(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		for name, used := range map[string]bool{"no session is open": false, "a session is open": true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				p, through := mysqltest.BehindProxy(t, s)
				l, err := newLocker(t.Context(), cuttableConnector(t, s, through), Options{PoolSize: 64}, lock.Options{})
				require.NoError(t, err)
				t.Cleanup(func() { _ = l.Close() })
				key := backendtest.UniqueKey(t)
				if used {
					lease, err := l.TryAcquire(t.Context(), key)
					require.NoError(t, err)
					require.NoError(t, lease.Release(t.Context()))
				}
				p.Freeze()
				defer p.Cut()
				for what, get := range map[string]func(context.Context, string, ...lock.Option) (lock.Lease, error){
					"Acquire": l.Acquire, "TryAcquire": l.TryAcquire,
				} {
					_, err := get(backendtest.Short(t, 300*time.Millisecond), key)
					require.ErrorIs(t, err, context.DeadlineExceeded, what)
					assert.NotErrorIs(t, err, lock.ErrHeld, what)
					assert.True(t, errors.Is(err, lock.ErrOutcomeUnknown) || errors.Is(err, lock.ErrUnavailable), "%s: %v", what, err)
					p.Cut() // the next one has no session
				}
				_, err = l.TryAcquire(context.Background(), key, lock.WithTTL(time.Second))
				require.ErrorIs(t, err, lock.ErrUnavailable)
				assert.NotContains(t, err.Error(), "larger", "64 sessions are unused")
			})
		}
	})
}
