package lock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
	memlock "github.com/mortiselock/lock/memory"
)

// personalities runs a test in virtual time on both personalities of the memory
// backend. open returns a further Locker on the same store.
func personalities(t *testing.T, test func(t *testing.T, store *memlock.Store, open opener)) {
	eachPersonality(t, func(t *testing.T, o memlock.Options) {
		test(t, o.Store, openerOf(t, o))
	})
}

func eachPersonality(t *testing.T, test func(t *testing.T, o memlock.Options)) {
	for name, queue := range map[string]bool{"record": false, "queue": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test(t, memlock.Options{Store: memlock.NewStore(nil), Queue: queue})
			})
		})
	}
}

func openerOf(t *testing.T, o memlock.Options) opener {
	return func(opts ...func(*memlock.Options)) lock.Locker {
		o := o
		for _, f := range opts {
			f(&o)
		}
		l, err := memlock.New(t.Context(), &o)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, l.Close()) })
		return l
	}
}

type opener = func(...func(*memlock.Options)) lock.Locker

func cause(l lock.Lease) error { return context.Cause(l.Context()) }

func TestAutomaticRenewalKeepsTheHold(t *testing.T) {
	personalities(t, func(t *testing.T, store *memlock.Store, open opener) {
		a, b := open(), open()
		ctx := t.Context()
		lease, err := a.Acquire(ctx, "k", lock.WithTTL(15*time.Second))
		require.NoError(t, err)
		for range 240 {
			time.Sleep(15 * time.Second)
			_, err := b.TryAcquire(ctx, "k")
			require.ErrorIs(t, err, lock.ErrHeld)
		}
		require.NoError(t, lease.Context().Err())
		require.NoError(t, lease.Release(ctx))
		require.ErrorIs(t, cause(lease), lock.ErrReleased)
		require.NotErrorIs(t, cause(lease), lock.ErrLost)
		second, err := b.TryAcquire(ctx, "k")
		require.NoError(t, err)
		assert.Greater(t, second.Token(), lease.Token())
		require.NoError(t, second.Release(ctx))
		require.ErrorIs(t, second.Release(ctx), lock.ErrNotHeld)
	})
}

func TestHangingRenewalsEndTheHoldAtItsDeadline(t *testing.T) {
	disturbedPersonalities(t, func(t *testing.T, disturb disturber, open opener) {
		a, faults := disturb()
		b := open()
		ctx := t.Context()
		lease, err := a.Acquire(ctx, "k", lock.WithTTL(3*time.Second))
		require.NoError(t, err)
		faults.All(faultlock.Drop(), faultlock.OpRenew)
		deadline, ok := lease.Deadline()
		require.True(t, ok)
		granted := make(chan time.Time, 1)
		go func() {
			_, err := b.Acquire(ctx, "k")
			assert.NoError(t, err)
			granted <- time.Now()
		}()
		<-lease.Context().Done()
		lost := time.Now()
		assert.Equal(t, deadline.UnixMilli(), lost.UnixMilli())
		assert.ErrorIs(t, cause(lease), lock.ErrExpired)
		assert.ErrorIs(t, cause(lease), lock.ErrLost)
		next := <-granted
		assert.False(t, next.Before(lost), "the next grant came %s before the loss signal", lost.Sub(next))
		assert.ErrorIs(t, lease.Release(ctx), lock.ErrLost)
		assert.ErrorIs(t, lease.Renew(ctx), lock.ErrNotHeld)
		faults.Heal()
	})
}

func TestFailedRenewalsThatRecoverAreNoLoss(t *testing.T) {
	disturbedPersonalities(t, func(t *testing.T, disturb disturber, open opener) {
		a, faults := disturb()
		lease, err := a.Acquire(t.Context(), "k", lock.WithTTL(6*time.Second))
		require.NoError(t, err)
		for range 20 {
			faults.Heal()
			faults.Next(2, faultlock.Drop(), faultlock.OpRenew)
			faults.Next(1, faultlock.FailAfter(), faultlock.OpRenew)
			time.Sleep(6 * time.Second)
			require.NoError(t, lease.Context().Err())
		}
		require.NoError(t, lease.Release(t.Context()))
	})
}

func TestRemovedRecordIsReportedWithinARenewalPeriod(t *testing.T) {
	personalities(t, func(t *testing.T, store *memlock.Store, open opener) {
		lease, err := open().Acquire(t.Context(), "k", lock.WithTTL(9*time.Second))
		require.NoError(t, err)
		time.Sleep(time.Second)
		start := time.Now()
		require.True(t, store.Remove("k"))
		<-lease.Context().Done()
		assert.LessOrEqual(t, time.Since(start), 3*time.Second)
		assert.ErrorIs(t, cause(lease), lock.ErrTakenOver)
	})
}

func TestLostReplyOfAcquireIsCountedOnce(t *testing.T) {
	disturbedPersonalities(t, func(t *testing.T, disturb disturber, open opener) {
		ctx := t.Context()
		a, faults := disturb()
		b := open()
		faults.Next(1, faultlock.FailAfter(), opsTry...)
		lease, err := a.Acquire(ctx, "k")
		require.NoError(t, err)
		require.NoError(t, lease.Release(ctx))
		l, err := b.TryAcquire(ctx, "k")
		require.NoError(t, err)
		require.NoError(t, l.Release(ctx))

		faults.Next(1, faultlock.FailAfter(), opsTry...)
		_, err = a.TryAcquire(ctx, "k")
		require.ErrorIs(t, err, lock.ErrOutcomeUnknown)
		require.NotErrorIs(t, err, lock.ErrHeld)
		synctest.Wait()
		l, err = b.TryAcquire(ctx, "k")
		require.NoError(t, err, "the grant that nobody was told of was not removed")
		require.NoError(t, l.Release(ctx))
	})
}

func TestLostReplyOfReleaseHarmsNobody(t *testing.T) {
	disturbedPersonalities(t, func(t *testing.T, disturb disturber, open opener) {
		ctx := t.Context()
		a, faults := disturb()
		b := open()
		lease, err := a.Acquire(ctx, "k")
		require.NoError(t, err)
		faults.Next(2, faultlock.FailAfter(), opsRelease...)
		err = lease.Release(ctx)
		if err != nil {
			require.ErrorIs(t, err, lock.ErrOutcomeUnknown)
		}
		next, err := b.Acquire(ctx, "k")
		require.NoError(t, err)
		if err := lease.Release(ctx); err != nil {
			require.ErrorIs(t, err, lock.ErrNotHeld)
		}
		time.Sleep(time.Minute)
		require.NoError(t, next.Context().Err())
		require.NoError(t, next.Release(ctx))
	})
}

func TestMaxHoldEndsARenewedHold(t *testing.T) {
	personalities(t, func(t *testing.T, store *memlock.Store, open opener) {
		a, b := open(), open()
		start := time.Now()
		lease, err := a.Acquire(t.Context(), "k", lock.WithMaxHold(time.Minute))
		require.NoError(t, err)
		<-lease.Context().Done()
		assert.Equal(t, time.Minute, time.Since(start))
		assert.ErrorIs(t, cause(lease), lock.ErrMaxHold)
		synctest.Wait()
		next, err := b.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		require.NoError(t, next.Release(t.Context()))
	})
}

func TestReentryByExplicitOwnerOnly(t *testing.T) {
	personalities(t, func(t *testing.T, store *memlock.Store, open opener) {
		ctx := t.Context()
		a, b := open(), open()
		first, err := a.Acquire(ctx, "k", lock.WithOwner("me"), lock.WithTTL(30*time.Second))
		require.NoError(t, err)
		second, err := a.Acquire(ctx, "k", lock.WithOwner("me"), lock.WithTTL(3*time.Second), lock.WithoutRenewal())
		require.NoError(t, err)
		assert.Equal(t, first.Token(), second.Token())
		_, err = a.TryAcquire(ctx, "k")
		require.ErrorIs(t, err, lock.ErrHeld)
		_, err = a.TryAcquire(ctx, "k", lock.WithOwner("you"))
		require.ErrorIs(t, err, lock.ErrHeld)

		time.Sleep(4 * time.Second)
		assert.ErrorIs(t, cause(second), lock.ErrExpired, "each hold has its own expiry")
		assert.NoError(t, first.Context().Err())
		_, err = b.TryAcquire(ctx, "k")
		require.ErrorIs(t, err, lock.ErrHeld)

		third, err := a.Acquire(ctx, "k", lock.WithOwner("me"))
		require.NoError(t, err)
		require.NoError(t, first.Release(ctx))
		_, err = b.TryAcquire(ctx, "k")
		require.ErrorIs(t, err, lock.ErrHeld)
		require.NoError(t, third.Release(ctx))
		l, err := b.TryAcquire(ctx, "k")
		require.NoError(t, err)
		require.NoError(t, l.Release(ctx))
	})
}

func TestReentryDoesNotWaitBehindWaiters(t *testing.T) {
	personalities(t, func(t *testing.T, store *memlock.Store, open opener) {
		ctx := t.Context()
		a, b := open(), open()
		first, err := a.Acquire(ctx, "k", lock.WithOwner("me"))
		require.NoError(t, err)
		var waiters sync.WaitGroup
		for _, l := range []lock.Locker{a, b} {
			waiters.Add(1)
			go func() {
				defer waiters.Done()
				if lease, err := l.Acquire(ctx, "k"); assert.NoError(t, err) {
					assert.NoError(t, lease.Release(ctx))
				}
			}()
		}
		synctest.Wait()
		second, err := a.Acquire(ctx, "k", lock.WithOwner("me"))
		require.NoError(t, err)
		require.NoError(t, second.Release(ctx))
		require.NoError(t, first.Release(ctx))
		waiters.Wait()
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	personalities(t, func(t *testing.T, store *memlock.Store, open opener) {
		ctx := t.Context()
		a, b := open(), open()
		lease, err := a.Acquire(ctx, "k", lock.WithLabel("nightly"))
		require.NoError(t, err)
		for _, l := range []lock.Locker{a, b} {
			short, cancel := context.WithTimeout(ctx, 7*time.Second)
			defer cancel()
			_, err = l.Acquire(short, "k")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, err, lock.ErrHeld)
		}
		var held *lock.HeldError
		_, err = b.TryAcquire(ctx, "k")
		require.ErrorAs(t, err, &held)
		assert.Equal(t, "nightly", held.Holder.Label)
		assert.Positive(t, held.Holder.PID)
		require.NoError(t, lease.Release(ctx))
		next, err := b.TryAcquire(ctx, "k")
		require.NoError(t, err)
		require.NoError(t, next.Release(ctx))
		synctest.Wait()
		assert.Zero(t, store.Len())
	})
}

func TestCloseEndsHoldsAndWaits(t *testing.T) {
	personalities(t, func(t *testing.T, store *memlock.Store, open opener) {
		ctx := t.Context()
		a, b := open(), open()
		lease, err := a.Acquire(ctx, "k")
		require.NoError(t, err)
		waiting := make(chan error, 1)
		go func() {
			_, err := a.Acquire(ctx, "k")
			waiting <- err
		}()
		synctest.Wait()
		require.NoError(t, a.Close())
		assert.ErrorIs(t, <-waiting, lock.ErrClosed)
		assert.ErrorIs(t, cause(lease), lock.ErrClosed)
		_, err = a.Acquire(ctx, "k")
		assert.ErrorIs(t, err, lock.ErrClosed)
		next, err := b.TryAcquire(ctx, "k")
		require.NoError(t, err)
		assert.ErrorIs(t, lease.Release(ctx), lock.ErrNotHeld)
		require.NoError(t, next.Context().Err())
		require.NoError(t, next.Release(ctx))
	})
}

func TestSessionLossIsToldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore(nil)
		l, err := memlock.New(t.Context(), &memlock.Options{Store: store, Queue: true})
		require.NoError(t, err)
		defer l.Close()
		plain, err := l.Acquire(t.Context(), "a")
		require.NoError(t, err)
		inner, err := l.Acquire(t.Context(), "b", lock.WithOwner("me"))
		require.NoError(t, err)
		outer, err := l.Acquire(t.Context(), "b", lock.WithOwner("me"))
		require.NoError(t, err)
		start := time.Now()
		store.EndSession()
		for _, lease := range []lock.Lease{plain, inner, outer} {
			<-lease.Context().Done()
			assert.ErrorIs(t, cause(lease), lock.ErrSessionLost)
		}
		assert.Zero(t, time.Since(start))
	})
}

// A waiter that lost its place once, and got another, is told that the key is held, and
// not that the server can't be reached.
func TestAPlaceThatWasLostIsForgottenWithTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore(nil)
		b, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: store, Queue: true})
		require.NoError(t, err)
		faults := faultlock.New(b, nil)
		l, err := lock.New(faults.Backend(), nil)
		require.NoError(t, err)
		defer l.Close()
		other, err := memlock.New(t.Context(), &memlock.Options{Store: store, Queue: true})
		require.NoError(t, err)
		defer other.Close()
		lease, err := other.TryAcquire(t.Context(), "k")
		require.NoError(t, err)

		faults.Next(1, faultlock.FailBefore(), faultlock.OpWait)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = l.Acquire(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, lock.ErrHeld)
		require.NotErrorIs(t, err, lock.ErrUnavailable)
		require.NoError(t, lease.Release(t.Context()))
	})
}

func TestWaitersOfOneLockerAreServedInTheirOrder(t *testing.T) {
	personalities(t, func(t *testing.T, store *memlock.Store, open opener) {
		ctx := t.Context()
		a := open()
		first, err := a.Acquire(ctx, "k")
		require.NoError(t, err)
		order := make(chan int, 20)
		var waiters sync.WaitGroup
		defer waiters.Wait()
		for i := range 20 {
			waiters.Add(1)
			go func() {
				defer waiters.Done()
				l, err := a.Acquire(ctx, "k")
				if assert.NoError(t, err) {
					order <- i
					assert.NoError(t, l.Release(ctx))
				}
			}()
			synctest.Wait()
		}
		require.NoError(t, first.Release(ctx))
		for i := range 20 {
			assert.Equal(t, i, <-order)
		}
	})
}

func TestDo(t *testing.T) {
	personalities(t, func(t *testing.T, store *memlock.Store, open opener) {
		a := open()
		ctx := t.Context()
		boom := errors.New("boom")
		err := lock.Do(ctx, a, "k", func(ctx context.Context, lease lock.Lease) error {
			return lock.TryDo(ctx, a, "k", func(context.Context, lock.Lease) error {
				t.Error("two at a time")
				return nil
			})
		})
		require.ErrorIs(t, err, lock.ErrHeld)
		require.ErrorIs(t, lock.Do(ctx, a, "k", func(context.Context, lock.Lease) error { return boom }), boom)
		require.PanicsWithValue(t, "oops", func() {
			_ = lock.Do(ctx, a, "k", func(context.Context, lock.Lease) error { panic("oops") })
		})
		err = lock.Do(ctx, a, "k", func(ctx context.Context, lease lock.Lease) error {
			store.Remove("k")
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), lock.ErrTakenOver)
			return nil
		})
		require.ErrorIs(t, err, lock.ErrLost)
		synctest.Wait()
		assert.Zero(t, store.Len())
	})
}

func TestRefusedBeforeAnythingIsSent(t *testing.T) {
	l, faults := disturbed(t, &memlock.Options{Store: memlock.NewStore(nil)})
	defer l.Close()
	faults.All(faultlock.Drop(), opsTry...)
	for name, opts := range map[string][]lock.Option{
		"ttl zero":      {lock.WithTTL(0)},
		"ttl negative":  {lock.WithTTL(-time.Second)},
		"ttl too short": {lock.WithTTL(time.Microsecond)},
		"owner":         {lock.WithOwner("a\nb")},
		"owner empty":   {lock.WithOwner("")},
		"label":         {lock.WithLabel("a\x00b")},
		"max hold":      {lock.WithMaxHold(0)},
	} {
		_, err := l.TryAcquire(t.Context(), "k", opts...)
		assert.ErrorIs(t, err, lock.ErrInvalid, name)
	}
	for _, key := range []string{"", "a\tb", "\xff", string(make([]byte, 600))} {
		_, err := l.Acquire(t.Context(), key)
		assert.ErrorIs(t, err, lock.ErrInvalid, "key %q", key)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := l.Acquire(ended, "k")
	assert.ErrorIs(t, err, context.Canceled)
	assert.NotErrorIs(t, err, lock.ErrOutcomeUnknown)
	_, err = memlock.New(t.Context(), &memlock.Options{Lock: lock.Options{TTL: time.Microsecond}})
	assert.ErrorIs(t, err, lock.ErrInvalid)
	_, err = lock.New(nil, nil)
	assert.ErrorIs(t, err, lock.ErrInvalid)
	var _ backend.Backend
}

// TestLockerLeavesTheKeyToOthersWhoWatchIt: a Locker hands the key over to each of
// those who wait in it once, and then lets the other clients ask first, for a
// moment. Alone it loses no time.
func TestLockerLeavesTheKeyToOthersWhoWatchIt(t *testing.T) {
	for others, want := range map[bool]int{false: 0, true: 2} {
		t.Run(fmt.Sprintf("others watch %v", others), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				store := memlock.NewStore(nil)
				l, err := memlock.New(ctx, &memlock.Options{Store: store})
				require.NoError(t, err)
				if others {
					b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store})
					require.NoError(t, err)
					_, err = b.(backend.Watcher).Watch(ctx, "k")
					require.NoError(t, err)
				}
				lease, err := l.Acquire(ctx, "k")
				require.NoError(t, err)
				grants := make(chan lock.Lease, 20)
				wait := func() {
					go func() {
						if lease, err := l.Acquire(ctx, "k"); err == nil {
							grants <- lease
						}
					}()
					synctest.Wait()
				}
				wait()
				wait() // two wait at any time, so every third release is no hand-over
				late := 0
				for range 6 {
					released := time.Now()
					require.NoError(t, lease.Release(ctx))
					lease = <-grants
					if d := time.Since(released); d > 0 {
						assert.Less(t, d, 10*time.Millisecond)
						late++
					}
					wait()
				}
				assert.Equal(t, want, late)
				require.NoError(t, lease.Release(ctx))
				stop()
				require.NoError(t, l.Close())
			})
		})
	}
}

// Who gives up behind others of its Locker knows what they know, and for how long the hold
// can go on is counted from when the server said so.
func TestWhoGivesUpNamesTheHolder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		open := openerOf(t, memlock.Options{Store: memlock.NewStore(nil)})
		holder, waits := open(), open()
		_, err := holder.Acquire(t.Context(), "k", lock.WithLabel("the holder"), lock.WithTTL(10*time.Second), lock.WithoutRenewal())
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		for range 2 {
			go func() {
				_, err := waits.Acquire(ctx, "k")
				var held *lock.HeldError
				if assert.ErrorAs(t, err, &held) {
					assert.Equal(t, "the holder", held.Holder.Label)
					assert.LessOrEqual(t, held.Remaining, 6*time.Second)
				}
			}()
			synctest.Wait()
		}
		<-ctx.Done()
		synctest.Wait()
	})
}
