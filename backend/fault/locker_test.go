package faultlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	memlock "github.com/mortiselock/lock/memory"
)

// locker is a Locker behind faults, and a second one without faults.
func (x *bench) lockers() (faulty, plain *lock.Client) {
	x.t.Helper()
	faulty, err := lock.New(x.b, &lock.Options{TTL: ttl})
	require.NoError(x.t, err)
	plain, err = lock.New(x.direct, &lock.Options{TTL: ttl})
	require.NoError(x.t, err)
	x.t.Cleanup(func() { _ = plain.Close() })
	return faulty, plain
}

func TestLoseTellsTheHolderAtOnce(t *testing.T) {
	for _, queue := range []bool{false, true} {
		t.Run(fmt.Sprintf("queue=%t", queue), func(t *testing.T) {
			inBubble(t, queue, nil, func(t *testing.T, x *bench) {
				faulty, plain := x.lockers()
				for _, c := range []struct{ cause, want error }{{nil, lock.ErrSessionLost}, {lock.ErrTakenOver, lock.ErrTakenOver}, {lock.ErrExpired, lock.ErrExpired}} {
					l, err := faulty.Acquire(t.Context(), "k")
					require.NoError(t, err)
					other, err := faulty.Acquire(t.Context(), "other")
					require.NoError(t, err)
					assert.Equal(t, 1, x.faults.Lose("k", c.cause))
					require.Error(t, l.Context().Err())
					require.ErrorIs(t, context.Cause(l.Context()), c.want)
					require.NoError(t, other.Context().Err())
					assert.Equal(t, 0, x.faults.Lose("k", c.cause), "it is lost already")
					require.ErrorIs(t, l.Release(t.Context()), lock.ErrLost)
					synctest.Wait()
					next, err := plain.TryAcquire(t.Context(), "k")
					require.NoError(t, err, "the hold has ended on the server too")
					assert.Equal(t, 0, x.faults.Lose("k", nil), "it is not a hold of this backend")
					require.NoError(t, next.Release(t.Context()))
					require.NoError(t, other.Release(t.Context()))
					assert.Equal(t, 0, x.faults.Lose("other", nil), "it was released")
				}
				require.NoError(t, faulty.Close())
			})
		})
	}
}

// An explicit owner has several holds, which the queue personality counts in the
// Locker: all of them are lost.
func TestLoseHitsEveryHoldOfAnOwner(t *testing.T) {
	for _, queue := range []bool{false, true} {
		inBubble(t, queue, nil, func(t *testing.T, x *bench) {
			faulty, _ := x.lockers()
			var leases []lock.Lease
			for range 3 {
				l, err := faulty.Acquire(t.Context(), "k", lock.WithOwner("me"))
				require.NoError(t, err)
				leases = append(leases, l)
			}
			x.faults.Lose("k", nil)
			for _, l := range leases {
				require.ErrorIs(t, context.Cause(l.Context()), lock.ErrSessionLost)
			}
			require.NoError(t, faulty.Close())
		})
	}
}

// The notices of a backend that has some come through.
func TestNoticesOfTheInnerBackend(t *testing.T) {
	inBubble(t, true, nil, func(t *testing.T, x *bench) {
		faulty, _ := x.lockers()
		l, err := faulty.Acquire(t.Context(), "k")
		require.NoError(t, err)
		x.faults.All(faultlock.HangBefore())
		x.store.EndSession()
		synctest.Wait()
		require.ErrorIs(t, context.Cause(l.Context()), lock.ErrSessionLost)
		x.faults.Heal()
		require.NoError(t, faulty.Close())
	})
}

func TestCutOffHolderIsToldByTheDeadline(t *testing.T) {
	for _, queue := range []bool{false, true} {
		inBubble(t, queue, nil, func(t *testing.T, x *bench) {
			faulty, plain := x.lockers()
			l, err := faulty.Acquire(t.Context(), "k")
			require.NoError(t, err)
			time.Sleep(time.Minute)
			x.faults.All(faultlock.HangBefore())
			next, err := plain.Acquire(t.Context(), "k")
			require.NoError(t, err)
			require.ErrorIs(t, context.Cause(l.Context()), lock.ErrExpired)
			x.faults.Heal()
			require.NoError(t, faulty.Close())
			synctest.Wait()
			require.NoError(t, next.Context().Err())
			require.NoError(t, next.Release(t.Context()), "what arrives after the partition hits nobody")
		})
	}
}

// With the primitives alone every acquisition is an OpTry, and everything works.
func TestPrimitives(t *testing.T) {
	for _, queue := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := memlock.NewStore(nil)
			inner, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: store, Queue: queue})
			require.NoError(t, err)
			f := faultlock.New(inner, nil)
			l, err := lock.New(f.Primitives(), &lock.Options{TTL: ttl})
			require.NoError(t, err)
			a, err := l.Acquire(t.Context(), "k")
			require.NoError(t, err)
			f.All(faultlock.DelayBefore(time.Millisecond))
			time.AfterFunc(time.Minute, func() { _ = a.Release(context.Background()) })
			b, err := l.Acquire(t.Context(), "k")
			require.NoError(t, err)
			require.NoError(t, b.Release(t.Context()))
			require.NoError(t, l.Close())
			seen := map[faultlock.Op]bool{}
			for _, i := range f.Injected() {
				seen[i.Op] = true
			}
			assert.Equal(t, map[faultlock.Op]bool{faultlock.OpTry: true, faultlock.OpRenew: true, faultlock.OpRelease: true}, seen)
			assert.Equal(t, 0, store.Len())
		})
	}
}

// fence is what the key protects: it notices a second holder and a token that does
// not grow.
type fence struct {
	mu     sync.Mutex
	holder lock.Lease
	token  uint64
	grants int
}

func (f *fence) enter(l lock.Lease) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.holder != nil && f.holder.Context().Err() == nil {
		return errors.New("two holders at a time")
	}
	if l.Token() <= f.token {
		return fmt.Errorf("token %d after %d", l.Token(), f.token)
	}
	f.holder, f.token = l, l.Token()
	f.grants++
	return nil
}

func (f *fence) leave(l lock.Lease) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.holder == l {
		f.holder = nil
	}
}

// TestLockersKeepTheirPromisesUnderRandomFaults: many seeds, two minutes each in
// virtual time. Exclusion and tokens hold, the lock comes back to life when it
// heals, and nothing is left behind.
func TestLockersKeepTheirPromisesUnderRandomFaults(t *testing.T) {
	seeds := 60
	if testing.Short() {
		seeds = 10
	}
	grants, injected := 0, map[faultlock.Op]int{}
	for _, queue := range []bool{false, true} {
		for seed := range seeds {
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore(nil)
				var all []*faultlock.Faults
				var lockers []lock.Locker
				for i := range 3 {
					inner, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: store, Queue: queue})
					require.NoError(t, err)
					f := faultlock.New(inner, &faultlock.Options{Random: &faultlock.Random{
						Seed: uint64(10*seed + i + 1), Active: 0.5, Chance: 0.2, MaxDelay: ttl / 2,
					}})
					l, err := lock.New(f.Backend(), &lock.Options{TTL: ttl})
					require.NoError(t, err)
					all, lockers = append(all, f), append(lockers, l)
				}
				var guarded fence
				var wg sync.WaitGroup
				end := time.Now().Add(2 * time.Minute)
				for i, l := range lockers {
					for j := range 2 {
						rng := rand.New(rand.NewPCG(uint64(seed), uint64(10*i+j)))
						wg.Go(func() {
							for time.Now().Before(end) {
								ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.Int64N(int64(20*time.Second))))
								lease, err := l.Acquire(ctx, "k")
								cancel()
								if err != nil {
									continue
								}
								if err := guarded.enter(lease); err != nil {
									t.Errorf("%v: %v", lease.Context().Err(), err)
								}
								select {
								case <-lease.Context().Done():
								case <-time.After(time.Duration(rng.Int64N(int64(3 * time.Second)))):
								}
								guarded.leave(lease)
								_ = lease.Release(t.Context())
							}
						})
					}
				}
				wg.Wait()
				for _, f := range all {
					f.Heal()
				}
				for _, l := range lockers {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					lease, err := l.Acquire(ctx, "k")
					cancel()
					if assert.NoError(t, err, "after the faults have ended") {
						assert.NoError(t, guarded.enter(lease))
						guarded.leave(lease)
						assert.NoError(t, lease.Release(t.Context()))
					}
				}
				for _, l := range lockers {
					assert.NoError(t, l.Close())
				}
				time.Sleep(2 * ttl)
				assert.Equal(t, 0, store.Len(), "something was left behind")
				grants += guarded.grants
				for _, f := range all {
					for _, i := range f.Injected() {
						injected[i.Op]++
					}
					if t.Failed() {
						t.Log(f)
					}
				}
			})
			if t.Failed() {
				t.Fatalf("seed %d, queue %t", seed, queue)
			}
		}
	}
	t.Logf("%d grants, faults: %v", grants, injected)
	assert.Greater(t, grants, 10*seeds)
	for _, op := range []faultlock.Op{
		faultlock.OpTry, faultlock.OpRenew, faultlock.OpRelease, faultlock.OpWatch, faultlock.OpHint,
		faultlock.OpEnqueue, faultlock.OpWait, faultlock.OpWithdraw,
	} {
		assert.Positive(t, injected[op], op)
	}
}
