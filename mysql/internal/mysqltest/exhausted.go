package mysqltest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
)

// Exhausted acquires from a backend in virtual time whose pool has no free connection. That
// is told as it is: nothing was sent, and the pool can be made larger. Nobody must fear that
// the key was granted. What is told depends on which of two timers is first.
func Exhausted(t *testing.T, open func(t *testing.T) backend.Backend) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l, err := lock.New(open(t), nil)
		require.NoError(t, err)
		defer l.Close()
		for what, get := range map[string]func(context.Context, string, ...lock.Option) (lock.Lease, error){
			"TryAcquire": l.TryAcquire, "Acquire": l.Acquire,
		} {
			for limit := 50 * time.Millisecond; limit < time.Minute; limit *= 2 {
				_, err := get(backendtest.Short(t, limit), "k")
				require.ErrorIs(t, err, lock.ErrUnavailable, "%s, %s", what, limit)
				require.NotErrorIs(t, err, lock.ErrOutcomeUnknown, "%s, %s", what, limit)
				require.ErrorContains(t, err, "make the pool larger", "%s, %s", what, limit)
			}
		}
	})
}
