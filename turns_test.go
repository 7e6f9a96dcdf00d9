package lock_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	memlock "github.com/mortiselock/lock/memory"
)

// polled is the memory backend without what knows of others.
type polled struct{ backend.Backend }

func (p polled) Clock() backend.Clock { return backend.RuntimeClock() }

// unwatched declines to watch.
type unwatched struct{ watchedBackend }

func (unwatched) Watch(context.Context, string) (<-chan backend.Hint, error) {
	return nil, backend.ErrUnsupported
}
func (unwatched) Clock() backend.Clock { return backend.RuntimeClock() }

// TestTurnIsLeftToWaitersOfOthers: one Locker takes the key again and again, and another
// waits for it. How often it is passed over:
func TestTurnIsLeftToWaitersOfOthers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		polls      func(backend.Backend) backend.Backend
		elsewhere  bool // the release is in another goroutine: the next Acquire doesn't wait for it
		half, most int  // turns that half of the waits miss, and that one of them may
	}{
		"a release that tells": {nil, false, 1, 1},
		// An Acquire that asks just as the release is carried out is granted the key, and in
		// virtual time that is not rare.
		"a release elsewhere":      {nil, true, 3, 30},
		"refusals alone":           {func(b backend.Backend) backend.Backend { return polled{b} }, false, 3, 1000},
		"a watch that is declined": {func(b backend.Backend) backend.Backend { return unwatched{b.(watchedBackend)} }, false, 3, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore(nil)
				open := func() lock.Locker {
					b, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: store})
					require.NoError(t, err)
					if c.polls != nil {
						b = c.polls(b)
					}
					l, err := lock.New(b, nil)
					require.NoError(t, err)
					return l
				}
				a, b := open(), open()
				var turns atomic.Int64
				var stop atomic.Bool
				var releases sync.WaitGroup
				done := make(chan struct{})
				go func() {
					defer close(done)
					for !stop.Load() {
						lease, err := a.Acquire(t.Context(), "k")
						if !assert.NoError(t, err) {
							return
						}
						turns.Add(1)
						time.Sleep(50 * time.Millisecond)
						if c.elsewhere {
							releases.Go(func() { assert.NoError(t, lease.Release(t.Context())) })
							continue
						}
						assert.NoError(t, lease.Release(t.Context()))
						if c.polls != nil {
							time.Sleep(time.Millisecond) // in virtual time nobody else would ever be lucky
						}
					}
				}()
				time.Sleep(time.Second + 7*time.Millisecond)
				var missed []int64
				for range 21 {
					before := turns.Load()
					lease, err := b.Acquire(t.Context(), "k")
					require.NoError(t, err)
					missed = append(missed, turns.Load()-before)
					time.Sleep(10 * time.Millisecond)
					require.NoError(t, lease.Release(t.Context()))
					time.Sleep(30 * time.Millisecond)
				}
				stop.Store(true)
				<-done
				releases.Wait()
				slices.Sort(missed)
				assert.LessOrEqual(t, missed[10], int64(c.half), "%v", missed)
				assert.LessOrEqual(t, missed[20], int64(c.most), "%v", missed)
				before := time.Now()
				for range 20 {
					lease, err := a.Acquire(t.Context(), "k")
					require.NoError(t, err)
					require.NoError(t, lease.Release(t.Context()))
				}
				assert.Less(t, time.Since(before), 5*time.Second)
				before = time.Now()
				for range 100 {
					lease, err := a.Acquire(t.Context(), "k")
					require.NoError(t, err)
					require.NoError(t, lease.Release(t.Context()))
				}
				assert.Zero(t, time.Since(before), "nobody waits, so nobody is waited for")
				require.NoError(t, a.Close())
				require.NoError(t, b.Close())
			})
		})
	}
}
