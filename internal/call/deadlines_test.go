package call

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDeadlinesAreSharedByCallsOfAboutTheSameTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		parent, end := context.WithCancel(t.Context())
		d := deadlines{parent: parent}
		const limit = 10 * time.Second
		first, done := d.within(limit)
		done()
		require.NoError(t, first.Err(), "others have it too")
		seen := map[time.Time]bool{}
		for begin := time.Now(); time.Since(begin) < 3*limit; time.Sleep(limit / 1000) {
			ctx, done := d.within(limit)
			deadline, ok := ctx.Deadline()
			require.True(t, ok)
			left := time.Until(deadline)
			require.LessOrEqual(t, left, limit)
			require.Greater(t, left, limit-limit/deadlineShare)
			require.NoError(t, ctx.Err())
			seen[deadline] = true
			done()
		}
		require.Len(t, seen, 3*deadlineShare)
		require.ErrorIs(t, first.Err(), context.DeadlineExceeded, "it ends by itself")
		last, done := d.within(limit)
		defer done()
		end()
		require.ErrorIs(t, last.Err(), context.Canceled)
	})
}

// Calls with limits of their own must not leave a context each.
func TestDeadlinesOfOtherLimitsEndWithTheirCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		parent, end := context.WithCancel(t.Context())
		defer end()
		d := deadlines{parent: parent}
		_, done := d.within(time.Hour)
		done()
		left := 0
		for i := range 1000 {
			limit := time.Minute + time.Duration(i)
			ctx, done := d.within(limit)
			deadline, _ := ctx.Deadline()
			require.Equal(t, limit, time.Until(deadline))
			done()
			if ctx.Err() == nil {
				left++
			}
			time.Sleep(time.Millisecond)
		}
		require.Zero(t, left)
	})
}
