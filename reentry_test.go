package lock_test

import (
	"context"
	"errors"
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

func TestWaitersOfOneOwnerEnterTogether(t *testing.T) {
	personalities(t, func(t *testing.T, store *memlock.Store, open opener) {
		ctx := t.Context()
		a := open()
		first, err := a.Acquire(ctx, "k")
		require.NoError(t, err)
		leases := make(chan lock.Lease, 3)
		for range 3 {
			go func() {
				l, err := a.Acquire(ctx, "k", lock.WithOwner("me"))
				assert.NoError(t, err)
				leases <- l
			}()
			synctest.Wait()
		}
		require.NoError(t, first.Release(ctx))
		time.Sleep(5 * time.Second)
		require.Len(t, leases, 3, "a waiter of the owner waits for its own owner")
		token := uint64(0)
		for range 3 {
			l := <-leases
			if token != 0 {
				assert.Equal(t, token, l.Token())
			}
			token = l.Token()
			require.NoError(t, l.Release(ctx))
		}
	})
}

func TestLostReplyOfAnOwnersAcquireIsCountedOnce(t *testing.T) {
	disturbedPersonalities(t, func(t *testing.T, disturb disturber, open opener) {
		ctx := t.Context()
		a, faults := disturb()
		b := open()
		faults.Next(1, faultlock.FailAfter(), opsTry...)
		start := time.Now()
		lease, err := a.Acquire(ctx, "k", lock.WithOwner("me"))
		require.NoError(t, err)
		assert.Less(t, time.Since(start), time.Second)
		require.NoError(t, lease.Release(ctx))
		synctest.Wait()
		l, err := b.TryAcquire(ctx, "k")
		require.NoError(t, err)
		require.NoError(t, l.Release(ctx))
	})
}

// counted is the memory backend with a queue, whose owners are counted by the
// Locker, with hooks around its steps.
type counted struct {
	backend.Backend
	backend.Queuer
	notifier  backend.LossNotifier
	onRenew   func()
	hangRenew func(ctx context.Context)
	onRelease func(release func()) error
	afterWait func()
	faults    *faultlock.Faults // what they do meets them
}

func newCounted(t *testing.T, store *memlock.Store) *counted {
	b, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: store, Queue: true})
	require.NoError(t, err)
	faults := faultlock.New(b, nil)
	b = faults.Backend()
	return &counted{Backend: b, Queuer: b.(backend.Queuer), notifier: b.(backend.LossNotifier), faults: faults}
}

func (c *counted) Clock() backend.Clock { return backend.RuntimeClock() }

func (c *counted) NotifyLoss(lost func(id backend.ID, cause error)) { c.notifier.NotifyLoss(lost) }

func (c *counted) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	if hang := c.hangRenew; hang != nil {
		c.hangRenew = nil
		hang(ctx)
		return backend.Validity{}, errors.New("no answer")
	}
	v, err := c.Backend.Renew(ctx, h)
	if f := c.onRenew; f != nil {
		c.onRenew = nil
		f()
	}
	return v, err
}

func (c *counted) Release(ctx context.Context, h backend.Hold) error {
	if c.onRelease != nil {
		return c.onRelease(func() { _ = c.Backend.Release(context.Background(), h) })
	}
	return c.Backend.Release(ctx, h)
}

func (c *counted) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	t, err := c.Queuer.Enqueue(ctx, req)
	return countedTicket{t, c}, err
}

type countedTicket struct {
	backend.Ticket
	c *counted
}

func (t countedTicket) Wait(ctx context.Context) (backend.Grant, error) {
	g, err := t.Ticket.Wait(ctx)
	if err == nil && t.c.afterWait != nil {
		t.c.afterWait()
	}
	return g, err
}

// TestLostReplyDoesNotKeepTheOwnersOtherWaitersOut: two callers of one owner, on a
// server that counts no holds. The second asks before it queues up behind the first,
// and the answer, a grant, is lost.
func TestLostReplyDoesNotKeepTheOwnersOtherWaitersOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store := memlock.NewStore(nil)
		open := func() (lock.Locker, *faultlock.Faults) {
			inner, err := memlock.NewBackend(ctx, &memlock.Options{Store: store, Queue: true})
			require.NoError(t, err)
			faults := faultlock.New(inner, nil)
			l, err := lock.New(faults.Primitives(), nil) // without its queue
			require.NoError(t, err)
			return l, faults
		}
		a, faults := open()
		b, _ := open()
		defer a.Close()
		defer b.Close()
		held, err := b.Acquire(ctx, "k")
		require.NoError(t, err)
		leases := make(chan lock.Lease, 2)
		acquire := func() {
			l, err := a.Acquire(ctx, "k", lock.WithOwner("me"))
			assert.NoError(t, err)
			leases <- l
		}
		go acquire()
		time.Sleep(5 * time.Second) // it polls now and then only
		synctest.Wait()
		require.NoError(t, held.Release(ctx))
		faults.Next(1, faultlock.FailAfter(), faultlock.OpTry)
		go acquire()
		time.Sleep(2 * time.Second)
		require.Len(t, leases, 2, "the owner waits for itself")
		first, second := <-leases, <-leases
		require.Equal(t, first.Token(), second.Token())
		require.NoError(t, first.Release(ctx))
		require.NoError(t, second.Release(ctx))
		free, err := b.TryAcquire(ctx, "k")
		require.NoError(t, err)
		require.NoError(t, free.Release(ctx))
	})
}

// TestDelayedReleaseDoesNotEndTheNextHoldOfTheOwner: a release is reported as
// failed and reaches the server later, when the owner has come back.
func TestDelayedReleaseDoesNotEndTheNextHoldOfTheOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore(nil)
		c := newCounted(t, store)
		l, err := lock.New(c, nil)
		require.NoError(t, err)
		other, err := memlock.New(t.Context(), &memlock.Options{Store: store, Queue: true})
		require.NoError(t, err)
		first, err := l.TryAcquire(t.Context(), "k", lock.WithOwner("me"))
		require.NoError(t, err)
		times := 0
		c.onRelease = func(release func()) error {
			times++
			if times == 1 {
				time.AfterFunc(time.Second, release)
			}
			if times <= 2 {
				return errors.New("connection reset")
			}
			release()
			return nil
		}
		require.ErrorIs(t, first.Release(t.Context()), lock.ErrOutcomeUnknown)
		second, err := l.Acquire(t.Context(), "k", lock.WithOwner("me"))
		require.NoError(t, err)
		time.Sleep(1100 * time.Millisecond)
		if _, err := other.TryAcquire(t.Context(), "k"); err == nil {
			assert.Error(t, second.Context().Err(), "two holders at a time")
		}
		require.NoError(t, second.Release(t.Context()))
		require.NoError(t, l.Close())
		require.NoError(t, other.Close())
	})
}

// TestLossWhileTheOwnerEnters: the session ends between the confirmation of the
// hold and the entry.
func TestLossWhileTheOwnerEnters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore(nil)
		c := newCounted(t, store)
		l, err := lock.New(c, nil)
		require.NoError(t, err)
		first, err := l.TryAcquire(t.Context(), "k", lock.WithOwner("me"))
		require.NoError(t, err)
		c.onRenew = store.EndSession
		second, err := l.TryAcquire(t.Context(), "k", lock.WithOwner("me"))
		require.Error(t, first.Context().Err())
		if err == nil {
			synctest.Wait()
			if second.Context().Err() == nil {
				assert.NotZero(t, second.Token())
				_, err = l.TryAcquire(t.Context(), "k")
				assert.ErrorIs(t, err, lock.ErrHeld, "two holders at a time")
			}
		}
		require.NoError(t, l.Close())
	})
}

// TestWithdrawalDoesNotEndAHoldBesideIt: a place is granted the key while its
// caller gives up, the withdrawal takes a while, and the owner enters meanwhile.
func TestWithdrawalDoesNotEndAHoldBesideIt(t *testing.T) {
	for range 10 { // whether the grant arrives is left to chance
		withdrawBesideAHold(t)
	}
}

func withdrawBesideAHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore(nil)
		c := newCounted(t, store)
		l, err := lock.New(c, nil)
		require.NoError(t, err)
		other, err := memlock.New(t.Context(), &memlock.Options{Store: store, Queue: true})
		require.NoError(t, err)
		first, err := other.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		granted := make(chan struct{})
		c.afterWait = func() { close(granted); time.Sleep(time.Second) }
		ctx, cancel := context.WithCancel(t.Context())
		waited := make(chan error, 1)
		go func() {
			_, err := l.Acquire(ctx, "k", lock.WithOwner("me"))
			waited <- err
		}()
		synctest.Wait()
		require.NoError(t, first.Release(t.Context()))
		<-granted
		c.faults.All(faultlock.Drop(), opsRelease...)
		cancel()
		require.ErrorIs(t, <-waited, context.Canceled)
		time.Sleep(1010 * time.Millisecond)
		second, err := l.TryAcquire(t.Context(), "k", lock.WithOwner("me"))
		c.faults.Heal()
		if err != nil {
			require.ErrorIs(t, err, lock.ErrHeld)
		} else {
			time.Sleep(1500 * time.Millisecond)
			if _, err := other.TryAcquire(t.Context(), "k"); err == nil {
				assert.Error(t, second.Context().Err(), "two holders at a time")
			}
			require.NoError(t, second.Release(t.Context()))
		}
		time.Sleep(2 * time.Second)
		next, err := other.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		require.NoError(t, next.Release(t.Context()))
		require.NoError(t, l.Close())
		require.NoError(t, other.Close())
	})
}

// TestEnteringWithALongTTLLastsNoLongerThanItsHold: the owner's hold on the server is
// renewed for the TTLs of the holds that there are, and not of one that was released.
func TestEnteringWithALongTTLLastsNoLongerThanItsHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore(nil)
		c := newCounted(t, store)
		l, err := lock.New(c, nil)
		require.NoError(t, err)
		short, err := l.TryAcquire(t.Context(), "k", lock.WithOwner("me"), lock.WithTTL(3*time.Second))
		require.NoError(t, err)
		long, err := l.TryAcquire(t.Context(), "k", lock.WithOwner("me"), lock.WithTTL(time.Hour))
		require.NoError(t, err)
		require.NoError(t, long.Release(t.Context()))
		time.Sleep(2 * time.Hour)
		require.NoError(t, short.Context().Err())
		c.faults.All(faultlock.Drop()) // the process is cut off
		<-short.Context().Done()
		other, err := memlock.New(t.Context(), &memlock.Options{Store: store, Queue: true})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err = other.Acquire(ctx, "k")
		require.NoError(t, err, "a hold with a TTL of 3 s keeps the key for longer")
		c.faults.Heal()
		require.NoError(t, l.Close())
		require.NoError(t, other.Close())
	})
}

// TestNoticeOfAnEarlierGrantDoesNotEndTheNext: the answer to a try is lost, the session
// ends and the hold with it, and the same acquisition is granted the key again.
func TestNoticeOfAnEarlierGrantDoesNotEndTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore(nil)
		c := newCounted(t, store)
		l, err := lock.New(c, nil)
		require.NoError(t, err)
		c.faults.Next(2, faultlock.FailAfter(), opsTry...)
		time.AfterFunc(time.Millisecond, store.EndSession)
		lease, err := l.Acquire(t.Context(), "k", lock.WithOwner("me"))
		require.NoError(t, err)
		require.NoError(t, lease.Context().Err(), "the grant is newer than the loss")
		require.NoError(t, lease.Release(t.Context()))
		require.NoError(t, l.Close())
	})
}

// late has the first grant arrive when hardly anything is left of it, and lose its hold
// before the same acquisition asks again.
type late struct {
	*counted
	lose func()
}

func (l *late) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := l.counted.Try(ctx, req)
	if lose := l.lose; err == nil && lose != nil {
		l.lose = nil
		g.For = time.Second
		lose()
	}
	return g, err
}

// TestLossFoundByTheRequestThatIsGrantedAnew: a grant that arrives too late is not used,
// and its hold ends without notice. The same acquisition, asking again, finds that out and
// is granted the key: the loss of what nobody had is not the loss of that.
func TestLossFoundByTheRequestThatIsGrantedAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore(nil)
		c := &late{counted: newCounted(t, store), lose: func() { store.Remove("k") }}
		l, err := lock.New(c, nil)
		require.NoError(t, err)
		lease, err := l.Acquire(t.Context(), "k", lock.WithOwner("me"))
		require.NoError(t, err)
		synctest.Wait()
		require.NoError(t, lease.Context().Err(), "the grant is newer than the loss")
		require.NoError(t, lease.Release(t.Context()))
		require.NoError(t, l.Close())
	})
}

// TestGrantThatWaitedTooLongDoesNotEndTheHoldAfterIt: a place in the queue is granted,
// the answer takes longer than the TTL, and the owner has entered anew meanwhile.
func TestGrantThatWaitedTooLongDoesNotEndTheHoldAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore(nil)
		c := newCounted(t, store)
		l, err := lock.New(c, nil)
		require.NoError(t, err)
		other, err := memlock.New(t.Context(), &memlock.Options{Store: store, Queue: true})
		require.NoError(t, err)
		held, err := other.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		waited := make(chan lock.Lease, 1)
		go func() {
			lease, err := l.Acquire(t.Context(), "k", lock.WithOwner("me"), lock.WithTTL(time.Second))
			assert.NoError(t, err)
			waited <- lease
		}()
		synctest.Wait()
		c.afterWait = func() { c.afterWait = nil; time.Sleep(2 * time.Second) }
		require.NoError(t, held.Release(t.Context()))
		time.Sleep(1500 * time.Millisecond)
		lease, err := l.TryAcquire(t.Context(), "k", lock.WithOwner("me"))
		require.NoError(t, err)
		second := <-waited
		require.NoError(t, lease.Context().Err(), "lost to a grant that came before it")
		require.Equal(t, lease.Token(), second.Token())
		require.NoError(t, second.Release(t.Context()))
		require.NoError(t, lease.Release(t.Context()))
		require.NoError(t, l.Close())
		require.NoError(t, other.Close())
	})
}

// TestRequestThatHangsDoesNotCostTheOwnersOtherHold: one request of an owner gets no
// answer, an entry with a long TTL or the clean-up of one that failed. The renewals of
// the hold that the owner has go on beside it.
func TestRequestThatHangsDoesNotCostTheOwnersOtherHold(t *testing.T) {
	hang := func(ctx context.Context) { <-ctx.Done() }
	for name, disturb := range map[string]func(c *counted){
		"entry": func(c *counted) { c.hangRenew = hang },
		"clean-up": func(c *counted) {
			c.hangRenew = func(context.Context) {}
			c.onRelease = func(release func()) error {
				c.onRelease = nil
				time.Sleep(5 * time.Second)
				return errors.New("no answer")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore(nil)
				c := newCounted(t, store)
				l, err := lock.New(c, nil)
				require.NoError(t, err)
				lease, err := l.TryAcquire(t.Context(), "k", lock.WithOwner("me"), lock.WithTTL(3*time.Second))
				require.NoError(t, err)
				disturb(c)
				_, err = l.TryAcquire(t.Context(), "k", lock.WithOwner("me"), lock.WithTTL(time.Minute))
				require.ErrorIs(t, err, lock.ErrOutcomeUnknown)
				time.Sleep(10 * time.Second)
				require.NoError(t, lease.Context().Err(), "lost to one request without an answer")
				require.NoError(t, lease.Release(t.Context()))
				require.NoError(t, l.Close())
			})
		})
	}
}
