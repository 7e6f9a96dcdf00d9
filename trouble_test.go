package lock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
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

// slow is a server whose network can be slow, in both directions, and whose client
// library does not watch contexts: the worst that a backend may be.
type slow struct {
	backend.Backend
	mu     sync.Mutex
	before map[faultlock.Op]time.Duration
	after  map[faultlock.Op]time.Duration
	calls  map[faultlock.Op]int
}

func newSlow(t *testing.T, store *memlock.Store) *slow {
	b, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: store})
	require.NoError(t, err)
	return &slow{Backend: b, before: map[faultlock.Op]time.Duration{}, after: map[faultlock.Op]time.Duration{}, calls: map[faultlock.Op]int{}}
}

// disturbed puts faults between the server and its network.
func (s *slow) disturbed() *faultlock.Faults {
	faults := faultlock.New(s.Backend, nil)
	s.Backend = faults.Backend()
	return faults
}

func (s *slow) delay(op faultlock.Op, before, after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before[op], s.after[op] = before, after
}

func (s *slow) count(op faultlock.Op) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[op]
}

func (s *slow) enter(op faultlock.Op) (after time.Duration) {
	s.mu.Lock()
	s.calls[op]++
	before, after := s.before[op], s.after[op]
	s.mu.Unlock()
	time.Sleep(before)
	return after
}

func (s *slow) Try(_ context.Context, req backend.Request) (backend.Grant, error) {
	sent := backend.RuntimeClock().Now()
	after := s.enter(faultlock.OpTry)
	g, err := s.Backend.Try(context.Background(), req)
	g.Sent = sent
	time.Sleep(after)
	return g, err
}

func (s *slow) Renew(_ context.Context, h backend.Hold) (backend.Validity, error) {
	sent := backend.RuntimeClock().Now()
	after := s.enter(faultlock.OpRenew)
	v, err := s.Backend.Renew(context.Background(), h)
	v.Sent = sent
	time.Sleep(after)
	return v, err
}

func (s *slow) Release(_ context.Context, h backend.Hold) error {
	after := s.enter(faultlock.OpRelease)
	err := s.Backend.Release(context.Background(), h)
	time.Sleep(after)
	return err
}

func (s *slow) Clock() backend.Clock { return backend.RuntimeClock() }

// onSlow runs a test in virtual time with one Locker on a slow server and one
// beside it on the same store.
func onSlow(t *testing.T, test func(t *testing.T, s *slow, a, b lock.Locker)) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore(nil)
		s := newSlow(t, store)
		a, err := lock.New(s, &lock.Options{TTL: 6 * time.Second})
		require.NoError(t, err)
		b, err := memlock.New(t.Context(), &memlock.Options{Store: store})
		require.NoError(t, err)
		test(t, s, a, b)
		s.delay(faultlock.OpTry, 0, 0)
		s.delay(faultlock.OpRenew, 0, 0)
		s.delay(faultlock.OpRelease, 0, 0)
		_ = a.Close()
		_ = b.Close()
		time.Sleep(time.Hour) // what hangs ends
	})
}

func TestCancelledTryReturnsAtOnceAndTheLateGrantIsGivenBack(t *testing.T) {
	onSlow(t, func(t *testing.T, s *slow, a, b lock.Locker) {
		for _, when := range []struct{ before, after time.Duration }{{time.Minute, 0}, {0, time.Minute}, {time.Minute, time.Minute}} {
			s.delay(faultlock.OpTry, when.before, when.after)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			start := time.Now()
			_, err := a.TryAcquire(ctx, "k")
			cancel()
			assert.Less(t, time.Since(start), time.Second+100*time.Millisecond)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, err, lock.ErrOutcomeUnknown)
			// Whenever the server gets to it, the grant is gone within a moment.
			time.Sleep(2*time.Minute + time.Second)
			l, err := b.TryAcquire(t.Context(), "k")
			require.NoError(t, err)
			require.NoError(t, l.Release(t.Context()))
		}
	})
}

func TestGrantThatComesTooLateIsNotReturned(t *testing.T) {
	onSlow(t, func(t *testing.T, s *slow, a, b lock.Locker) {
		s.delay(faultlock.OpTry, 0, 5*time.Second) // of six
		_, err := a.TryAcquire(t.Context(), "k")
		require.Error(t, err)
		require.NotErrorIs(t, err, lock.ErrHeld)
		require.NotErrorIs(t, err, context.DeadlineExceeded, "the caller's context has not ended")
		time.Sleep(time.Second)
		l, err := b.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		require.NoError(t, l.Release(t.Context()))

		go func() {
			time.Sleep(20 * time.Second)
			s.delay(faultlock.OpTry, 0, 0)
		}()
		l, err = a.Acquire(t.Context(), "k")
		require.NoError(t, err)
		d, _ := l.Deadline()
		assert.Greater(t, time.Until(d), 2*time.Second)
		require.NoError(t, l.Release(t.Context()))
	})
}

func TestDeadlineIsCountedFromBeforeTheRequest(t *testing.T) {
	onSlow(t, func(t *testing.T, s *slow, a, b lock.Locker) {
		s.delay(faultlock.OpTry, 0, time.Second)
		start := time.Now()
		l, err := a.TryAcquire(t.Context(), "k", lock.WithoutRenewal())
		require.NoError(t, err)
		d, ok := l.Deadline()
		require.True(t, ok)
		assert.LessOrEqual(t, d.Sub(start), 6*time.Second)
		s.delay(faultlock.OpRenew, time.Second, time.Second)
		start = time.Now()
		require.NoError(t, l.Renew(t.Context()))
		d, _ = l.Deadline()
		assert.LessOrEqual(t, d.Sub(start), 6*time.Second)
		require.NoError(t, l.Release(t.Context()))
	})
}

func TestRenewalsThatHangEndTheHoldByItsDeadline(t *testing.T) {
	onSlow(t, func(t *testing.T, s *slow, a, b lock.Locker) {
		start := time.Now()
		l, err := a.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		s.delay(faultlock.OpRenew, time.Hour, 0)
		<-l.Context().Done()
		assert.LessOrEqual(t, time.Since(start), 6*time.Second)
		require.ErrorIs(t, cause(l), lock.ErrExpired)
		assert.GreaterOrEqual(t, s.count(faultlock.OpRenew), 2, "a renewal that hangs is sent again")
		_, err = b.Acquire(t.Context(), "k")
		require.NoError(t, err)
	})
}

func TestSlowRenewalsThatAreConfirmedInTimeKeepTheHold(t *testing.T) {
	onSlow(t, func(t *testing.T, s *slow, a, b lock.Locker) {
		l, err := a.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		s.delay(faultlock.OpRenew, 900*time.Millisecond, 900*time.Millisecond)
		time.Sleep(10 * time.Minute)
		require.NoError(t, l.Context().Err())
		require.NoError(t, l.Release(t.Context()))
	})
}

func TestReleaseIsBoundedWhenTheServerHangs(t *testing.T) {
	onSlow(t, func(t *testing.T, s *slow, a, b lock.Locker) {
		l, err := a.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		s.delay(faultlock.OpRelease, time.Hour, 0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		err = l.Release(ctx)
		assert.LessOrEqual(t, time.Since(start), 1100*time.Millisecond)
		require.ErrorIs(t, err, lock.ErrOutcomeUnknown)
		require.ErrorIs(t, cause(l), lock.ErrReleased)

		l, err = a.TryAcquire(t.Context(), "other")
		require.NoError(t, err)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		start = time.Now()
		err = l.Release(ended)
		assert.LessOrEqual(t, time.Since(start), 6*time.Second)
		require.ErrorIs(t, err, lock.ErrOutcomeUnknown)
		// The repeats in the background find the server again.
		s.delay(faultlock.OpRelease, 0, 0)
		next, err := b.Acquire(t.Context(), "k")
		require.NoError(t, err)
		require.NoError(t, next.Release(t.Context()))
	})
}

func TestReleaseWorksWithACancelledContext(t *testing.T) {
	onSlow(t, func(t *testing.T, s *slow, a, b lock.Locker) {
		s.delay(faultlock.OpRelease, 100*time.Millisecond, 100*time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		l, err := a.Acquire(ctx, "k")
		require.NoError(t, err)
		cancel()
		require.NoError(t, l.Context().Err(), "the hold does not depend on the context of Acquire")
		require.NoError(t, l.Release(ctx))
		_, err = b.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
	})
}

func TestCloseIsBoundedWhenTheServerHangs(t *testing.T) {
	onSlow(t, func(t *testing.T, s *slow, a, b lock.Locker) {
		l, err := a.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		s.delay(faultlock.OpTry, time.Hour, 0)
		s.delay(faultlock.OpRelease, time.Hour, 0)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		waiting := make(chan error, 1)
		go func() {
			_, err := a.Acquire(ctx, "other")
			waiting <- err
		}()
		synctest.Wait()
		start := time.Now()
		require.ErrorIs(t, a.Close(), lock.ErrOutcomeUnknown)
		assert.LessOrEqual(t, time.Since(start), 5*time.Second)
		require.ErrorIs(t, <-waiting, lock.ErrClosed)
		require.ErrorIs(t, cause(l), lock.ErrClosed)
		require.NoError(t, a.Close())
	})
}

func TestOneOfConcurrentReleasesCounts(t *testing.T) {
	onSlow(t, func(t *testing.T, s *slow, a, b lock.Locker) {
		s.delay(faultlock.OpRelease, time.Second, 0)
		l, err := a.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		var ok, gone atomic.Int32
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				switch err := l.Release(t.Context()); {
				case err == nil:
					ok.Add(1)
				case errors.Is(err, lock.ErrNotHeld):
					gone.Add(1)
				}
			})
		}
		wg.Wait()
		assert.EqualValues(t, 1, ok.Load())
		assert.EqualValues(t, 9, gone.Load())
		assert.Equal(t, 1, s.count(faultlock.OpRelease))
	})
}

func TestNothingIsSentAfterARelease(t *testing.T) {
	onSlow(t, func(t *testing.T, s *slow, a, b lock.Locker) {
		l, err := a.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		require.NoError(t, l.Release(t.Context()))
		synctest.Wait()
		sent := s.count(faultlock.OpRenew)
		require.Positive(t, sent)
		time.Sleep(time.Hour)
		assert.Equal(t, sent, s.count(faultlock.OpRenew))
	})
}

// down is a server that cannot be reached until it is up again.
type down struct {
	backend.Backend
	up  atomic.Bool
	err error
}

func (d *down) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if !d.up.Load() {
		return backend.Grant{}, d.err
	}
	return d.Backend.Try(ctx, req)
}

func (d *down) Clock() backend.Clock { return backend.RuntimeClock() }

func TestAcquireOutlastsAnOutageAndStopsAtAPermanentError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)})
		require.NoError(t, err)
		d := &down{Backend: b, err: fmt.Errorf("%w: connection refused", backend.ErrUnavailable)}
		l, err := lock.New(d, nil)
		require.NoError(t, err)
		defer l.Close()

		_, err = l.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, lock.ErrUnavailable)
		require.NotErrorIs(t, err, lock.ErrOutcomeUnknown)

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = l.Acquire(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, lock.ErrUnavailable)
		require.NotErrorIs(t, err, lock.ErrHeld)

		time.AfterFunc(time.Minute, func() { d.up.Store(true) })
		lease, err := l.Acquire(t.Context(), "k")
		require.NoError(t, err)
		require.NoError(t, lease.Release(t.Context()))

		d.up.Store(false)
		d.err = fmt.Errorf("%w: wrong password", backend.ErrPermanent)
		start := time.Now()
		_, err = l.Acquire(t.Context(), "k")
		require.ErrorIs(t, err, lock.ErrPermanent)
		assert.Zero(t, time.Since(start))
	})
}

// TestObserverIsTold: of every kind of event, with the context of the call that caused it,
// and without a mutex: it uses the Locker itself.
func TestObserverIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type caller struct{}
		var mu sync.Mutex
		seen := map[lock.EventKind]int{}
		called := map[lock.EventKind]any{}
		store := memlock.NewStore(nil)
		var l *lock.Client
		l, err := memlock.New(t.Context(), &memlock.Options{Store: store, Lock: lock.Options{Observer: func(ctx context.Context, e lock.Event) {
			if e.Key != "k" {
				return
			}
			mu.Lock()
			seen[e.Kind]++
			called[e.Kind] = ctx.Value(caller{})
			mu.Unlock()
			assert.NotEqual(t, "unknown", e.Kind.String())
			assert.Equal(t, "memory", e.Backend)
			assert.Equal(t, "a label", e.Label)
			if own, err := l.TryAcquire(context.Background(), fmt.Sprint("of the observer ", e.Kind, e.Lease)); err == nil {
				assert.NoError(t, own.Renew(context.Background()))
				assert.NoError(t, own.Release(context.Background()))
			}
		}}})
		require.NoError(t, err)
		ctx := context.WithValue(t.Context(), caller{}, "the caller")
		lease, err := l.Acquire(ctx, "k", lock.WithLabel("a label"))
		require.NoError(t, err)
		go func() {
			time.Sleep(time.Minute)
			assert.NoError(t, lease.Release(ctx))
		}()
		second, err := l.Acquire(ctx, "k", lock.WithLabel("a label"))
		require.NoError(t, err)
		_, err = l.TryAcquire(ctx, "k", lock.WithLabel("a label"))
		require.ErrorIs(t, err, lock.ErrHeld)
		store.Remove("k")
		<-second.Context().Done()
		synctest.Wait()
		require.NoError(t, l.Close())
		mu.Lock()
		defer mu.Unlock()
		for k := lock.EventAttempt; k <= lock.EventRefused; k++ {
			assert.Positive(t, seen[k], k.String())
			if k != lock.EventRenewed && k != lock.EventRenewalFailed && k != lock.EventLost {
				assert.Equal(t, "the caller", called[k], k.String())
			}
		}
		for kind, n := range map[lock.EventKind]int{
			lock.EventWaitBegun: 1, lock.EventWaitEnded: 1, lock.EventGranted: 2, lock.EventRenewalFailed: 1, lock.EventLost: 1, lock.EventReleased: 1, lock.EventRefused: 1,
		} {
			assert.Equal(t, n, seen[kind], kind.String())
		}
	})
}

// TestTroubleIsToldAlthoughTheLastRequestWasCutOff: the context ends while a
// request is in flight; the error still has what the server said before.
func TestTroubleIsToldAlthoughTheLastRequestWasCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow(t, memlock.NewStore(nil))
		d := &down{Backend: s, err: fmt.Errorf("%w: connection refused", backend.ErrUnavailable)}
		l, err := lock.New(d, nil)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		time.AfterFunc(50*time.Second, func() {
			s.delay(faultlock.OpTry, 20*time.Second, 0)
			d.up.Store(true)
		})
		_, err = l.Acquire(ctx, "k", lock.WithTTL(time.Hour))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, lock.ErrUnavailable)
		require.ErrorIs(t, err, lock.ErrOutcomeUnknown)
		time.Sleep(time.Hour)
		require.NoError(t, l.Close())
	})
}

// TestLateAnswerDuringAReleaseIsNoLoss: the answer to the first try of an acquisition
// comes while the lease that its second try was granted is being released, and is given
// back before the release takes effect.
func TestLateAnswerDuringAReleaseIsNoLoss(t *testing.T) {
	onSlow(t, func(t *testing.T, s *slow, a, _ lock.Locker) {
		s.delay(faultlock.OpTry, 0, 5*time.Second) // of six
		time.AfterFunc(time.Second, func() { s.delay(faultlock.OpTry, 0, 0) })
		lease, err := a.Acquire(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, 2, s.count(faultlock.OpTry))
		s.delay(faultlock.OpRelease, 2*time.Second, 0)
		time.AfterFunc(100*time.Millisecond, func() { s.delay(faultlock.OpRelease, 0, 0) })
		require.NoError(t, lease.Release(t.Context()), "its own clean-up has ended it")
		require.Equal(t, 2, s.count(faultlock.OpRelease))
	})
}
