package redislock

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

// What a hand-over costs depends on the number of Lockers that wait, and not on how
// many wait in them: a release, a question by each Locker, and one more script.
func TestCommandsPerHandOver(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	c := redistest.Client(t, server)
	const lockers = 4
	for _, waiters := range []int{10, 500} {
		t.Run(fmt.Sprintf("%d waiters", waiters), func(t *testing.T) {
			key := backendtest.UniqueKey(t)
			all := make([]lock.Locker, lockers)
			for i := range all {
				l, err := New(t.Context(), redistest.Client(t, server), nil)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, l.Close()) })
				all[i] = l
			}
			lease, err := all[0].Acquire(t.Context(), key)
			require.NoError(t, err)
			var served sync.WaitGroup
			for i := range waiters {
				served.Go(func() {
					got, err := all[i%lockers].Acquire(t.Context(), key)
					if assert.NoError(t, err) {
						assert.NoError(t, got.Release(t.Context()))
					}
				})
			}
			channel := namesOf(defaultPrefix, key).record()
			backendtest.Eventually(t, "every Locker waits", func() bool {
				return c.PubSubNumSub(t.Context(), channel).Val()[channel] == lockers
			})
			before, start := redistest.ScriptCalls(t, c), time.Now()
			require.NoError(t, lease.Release(t.Context()))
			served.Wait()
			calls := redistest.ScriptCalls(t, c) - before
			t.Logf("%.2f scripts per hand-over", float64(calls)/float64(waiters))
			// Under a watch a Locker asks every two seconds all the same.
			polls := lockers * (2 + int(time.Since(start)/(2*time.Second)))
			require.LessOrEqual(t, calls, (2+lockers)*waiters+polls)
		})
	}
}
