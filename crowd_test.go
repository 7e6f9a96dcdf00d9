package lock_test

import (
	"context"
	"math/rand/v2"
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

// watchedBackend is what the crowd uses of the memory backend.
type watchedBackend interface {
	backend.Backend
	backend.Watcher
	backend.ReleaseTeller
}

// far is the memory backend at the end of a line. It counts how often the server is asked.
type far struct {
	watchedBackend
	asked *atomic.Int64
}

func underWay() { time.Sleep(150*time.Microsecond + rand.N(100*time.Microsecond)) }

func (f far) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	f.asked.Add(1)
	underWay()
	defer underWay()
	return f.watchedBackend.Try(ctx, req)
}

func (f far) Release(ctx context.Context, h backend.Hold) error {
	underWay()
	defer underWay()
	return f.watchedBackend.Release(ctx, h)
}

func (f far) ReleaseTelling(ctx context.Context, h backend.Hold) (int, error) {
	underWay()
	defer underWay()
	return f.watchedBackend.ReleaseTelling(ctx, h)
}

func (f far) Watch(ctx context.Context, key string) (<-chan backend.Hint, error) {
	underWay()
	near, err := f.watchedBackend.Watch(ctx, key)
	if err != nil {
		return nil, err
	}
	hints := make(chan backend.Hint, 1)
	go func() {
		defer close(hints)
		for {
			select {
			case hint, ok := <-near:
				if !ok {
					return
				}
				underWay()
				select {
				case hints <- hint:
				default:
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return hints, nil
}

// TestCrowdDoesNotAskAllAtOnce: many Lockers wait for one key, as many programs do. Each asks
// the server a few times for each of its grants, however many they are.
func TestCrowdDoesNotAskAllAtOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		polls       bool
		clients     int
		first, then float64 // requests for a grant, just after a long hold and later
	}{
		"few who watch":  {false, 4, 2, 2},
		"many who watch": {false, 200, 15, 4},
		"few who poll":   {true, 4, 5, 5},
		"many who poll":  {true, 200, 50, 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var asked, grants atomic.Int64
				store := memlock.NewStore(nil)
				open := func() lock.Locker {
					near, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: store})
					require.NoError(t, err)
					var b backend.Backend = far{near.(watchedBackend), &asked}
					if c.polls {
						b = polled{b}
					}
					l, err := lock.New(b, nil)
					require.NoError(t, err)
					return l
				}
				holder := open()
				long, err := holder.Acquire(t.Context(), "k")
				require.NoError(t, err)
				var over atomic.Bool
				var all sync.WaitGroup
				for range c.clients {
					l := open()
					all.Go(func() {
						for !over.Load() {
							lease, err := l.Acquire(t.Context(), "k")
							if !assert.NoError(t, err) {
								return
							}
							grants.Add(1)
							time.Sleep(time.Millisecond)
							assert.NoError(t, lease.Release(t.Context()))
						}
						assert.NoError(t, l.Close())
					})
				}
				time.Sleep(500 * time.Millisecond)
				require.NoError(t, long.Release(t.Context()))
				perGrant := func(d time.Duration) float64 {
					a, g := asked.Load(), grants.Load()
					time.Sleep(d)
					g = grants.Load() - g
					assert.Greater(t, g, int64(d/(10*time.Millisecond)), "grants")
					return float64(asked.Load()-a) / float64(g)
				}
				assert.Less(t, perGrant(250*time.Millisecond), c.first, "at first")
				assert.Less(t, perGrant(time.Second), c.then, "later")
				over.Store(true)
				all.Wait()
				require.NoError(t, holder.Close())
			})
		})
	}
}
