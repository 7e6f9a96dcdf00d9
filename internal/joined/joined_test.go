package joined_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/internal/joined"
)

type key struct{}

// ends are the three ways in which a joined context ends.
var ends = map[string]struct {
	end  func(caller, own context.CancelFunc, c *joined.Context)
	told bool // to those who wait for the two contexts
}{
	"caller": {func(caller, _ context.CancelFunc, _ *joined.Context) { caller() }, true},
	"own":    {func(_, own context.CancelFunc, _ *joined.Context) { own() }, true},
	"End":    {func(_, _ context.CancelFunc, c *joined.Context) { c.End() }, false},
}

func TestEndsWithEither(t *testing.T) {
	for name, how := range ends {
		for _, watched := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					parent := context.WithValue(t.Context(), key{}, "value")
					caller, endCaller := context.WithCancel(parent)
					defer endCaller()
					own, endOwn := context.WithCancel(t.Context())
					defer endOwn()
					released := 0
					c := joined.New(caller, own, func() { released++ })
					if watched {
						select {
						case <-c.Done():
							t.Fatal("it has ended before either has")
						default:
						}
					}
					child, cancel := context.WithCancel(c)
					defer cancel()
					require.NoError(t, c.Err())
					var called atomic.Bool
					joined.AfterFunc(c, func() { called.Store(true) })

					how.end(endCaller, endOwn, c)
					synctest.Wait()
					<-c.Done()
					<-child.Done()
					require.ErrorIs(t, c.Err(), context.Canceled)
					assert.Equal(t, "value", c.Value(key{}))
					one, other := joined.Ends(c)
					told := false
					select {
					case <-one:
						told = true
					case <-other:
						told = true
					default:
					}
					assert.Equal(t, how.told, told)
					assert.Equal(t, how.told, called.Load())

					c.End()
					assert.Positive(t, released)
				})
			})
		}
	}
}

func TestDeadlineIsTheEarlier(t *testing.T) {
	const soon, later = time.Second, time.Minute
	for _, c := range []struct{ caller, own, want time.Duration }{
		{soon, later, soon}, {later, soon, soon}, {0, soon, soon}, {soon, 0, soon}, {0, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			caller, cancel := limited(t.Context(), c.caller)
			defer cancel()
			own, release := limited(t.Context(), c.own)
			both := joined.New(caller, own, release)
			defer both.End()
			got, ok := both.Deadline()
			require.Equal(t, c.want > 0, ok)
			if !ok {
				return
			}
			assert.Equal(t, start.Add(c.want), got)
			<-both.Done()
			assert.Equal(t, c.want, time.Since(start))
			assert.ErrorIs(t, both.Err(), context.DeadlineExceeded)
		})
	}
}

func limited(parent context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if limit == 0 {
		return context.WithCancel(parent)
	}
	return context.WithTimeout(parent, limit)
}

func TestStopKeepsItFromBeingCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		caller, endCaller := context.WithCancel(t.Context())
		own, endOwn := context.WithCancel(t.Context())
		c := joined.New(caller, own, endOwn)
		stop := joined.AfterFunc(c, func() { t.Error("called after it was stopped") })
		assert.True(t, stop())
		assert.False(t, stop())
		endCaller()
		endOwn()
		synctest.Wait()

		ran := false
		late, end := context.WithCancel(t.Context())
		stop = joined.AfterFunc(joined.New(late, t.Context(), func() {}), func() { ran = true })
		end()
		synctest.Wait()
		assert.False(t, stop())
		assert.True(t, ran)
	})
}
