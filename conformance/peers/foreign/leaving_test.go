package foreign

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/servertest"
	_ "github.com/mortiselock/lock/redis"
)

func serviceName(key string) string { return "service:" + key }

// TestConformance: two clients of the pair are never both inside.
func TestConformance(t *testing.T) {
	server := servertest.SharedRedis(t)
	conformance.Run(t, conformance.Config{
		Open: func(ctx context.Context) (lock.Locker, error) { return bothWithRedislock(ctx, t, server) },
		TTL:  time.Second, Budget: 5 * time.Second,
		Only: []string{"exclusion", "release", "HandsOut", "RenewKeeps", "CrashFrees"},
	})
}

func bothWithRedislock(ctx context.Context, t *testing.T, server *servertest.Server) (*lock.Pair, error) {
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	next, err := lock.Open(ctx, server.URL(), &lock.Options{TTL: time.Second})
	if err != nil {
		return nil, err
	}
	return lock.Both(Redislock(redislock.New(rdb), serviceName, time.Second), next)
}

// TestLeavingRedislock moves copies that use redislock as its page says to locks of this
// project, in three steps. Two at once have two holders.
func TestLeavingRedislock(t *testing.T) {
	server := servertest.SharedRedis(t)
	for name, steps := range map[string]int{"three steps": 3, "control": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := fmt.Sprintf("%s/%d", t.Name(), rand.Uint64())
			var inside, overlaps, holds atomic.Int32
			work := func() {
				if inside.Add(1) > 1 {
					overlaps.Add(1)
				}
				holds.Add(1)
				time.Sleep(time.Duration(1+rand.IntN(8)) * time.Millisecond)
				inside.Add(-1)
			}
			theirs := func(ctx context.Context) {
				rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
				defer rdb.Close()
				client := redislock.New(rdb)
				for ctx.Err() == nil {
					l, err := client.Obtain(t.Context(), serviceName(key), time.Second, &redislock.Options{RetryStrategy: redislock.LinearBackoff(5 * time.Millisecond)})
					if err != nil {
						continue
					}
					work()
					assert.NoError(t, l.Release(t.Context()))
				}
			}
			ours := func(ctx context.Context, l lock.Locker) {
				defer l.Close()
				for ctx.Err() == nil {
					lease, err := l.Acquire(t.Context(), key)
					if assert.NoError(t, err) {
						work()
						assert.NoError(t, lease.Release(t.Context()))
					}
				}
			}
			start := func(step int) (stop func()) {
				ctx, cancel := context.WithCancel(t.Context())
				var done sync.WaitGroup
				done.Go(func() {
					switch step {
					case 0:
						theirs(ctx)
					case steps - 1:
						l, err := lock.Open(ctx, server.URL(), &lock.Options{TTL: time.Second})
						if assert.NoError(t, err) {
							ours(ctx, l)
						}
					default:
						l, err := bothWithRedislock(ctx, t, server)
						if assert.NoError(t, err) {
							ours(ctx, l)
						}
					}
				})
				return func() { cancel(); done.Wait() }
			}
			copies := []func(){start(0), start(0), start(0)}
			for step := 1; step < steps; step++ {
				for i := range copies {
					for begun := holds.Load(); holds.Load() < begun+10; {
						time.Sleep(time.Millisecond)
					}
					copies[i]()
					copies[i] = start(step)
				}
			}
			for begun := holds.Load(); holds.Load() < begun+10; {
				time.Sleep(time.Millisecond)
			}
			for _, stop := range copies {
				stop()
			}
			if name == "control" {
				assert.NotZero(t, overlaps.Load(), "the oracle sees nothing")
				return
			}
			require.Zero(t, overlaps.Load())
		})
	}
}
