package lock_test

import (
	"context"
	"errors"
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

// handing counts hand-overs and can delay them, before or after their effect.
type handing struct {
	backend.Backend
	backend.Watcher
	inner         backend.HandOverer
	before, after time.Duration
	handed        atomic.Int32
	tried         atomic.Int32
}

func (h *handing) HandOver(_ context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
	h.handed.Add(1)
	time.Sleep(h.before)
	g, err := h.inner.HandOver(context.Background(), from, to)
	time.Sleep(h.after)
	return g, err
}

func (h *handing) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	h.tried.Add(1)
	return h.Backend.Try(ctx, req)
}

func (h *handing) Clock() backend.Clock { return backend.RuntimeClock() }

func onHanding(t *testing.T, test func(t *testing.T, h *handing, store *memlock.Store, l lock.Locker)) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore(nil)
		b, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: store})
		require.NoError(t, err)
		h := &handing{Backend: b, Watcher: b.(backend.Watcher), inner: b.(backend.HandOverer)}
		l, err := lock.New(h, nil)
		require.NoError(t, err)
		test(t, h, store, l)
		require.NoError(t, l.Close())
		time.Sleep(time.Hour)
		assert.Zero(t, store.Len())
	})
}

func TestReleaseHandsOverToTheNextWaiter(t *testing.T) {
	onHanding(t, func(t *testing.T, h *handing, _ *memlock.Store, l lock.Locker) {
		ctx := t.Context()
		first, err := l.Acquire(ctx, "k")
		require.NoError(t, err)
		tokens := make(chan uint64, 10)
		for range 10 {
			go func() {
				lease, err := l.Acquire(ctx, "k")
				if assert.NoError(t, err) {
					tokens <- lease.Token()
					time.Sleep(20 * time.Second) // and is renewed meanwhile
					assert.NoError(t, lease.Context().Err())
					assert.NoError(t, lease.Release(ctx))
				}
			}()
			synctest.Wait()
		}
		tried := h.tried.Load()
		require.NoError(t, first.Release(ctx))
		last := first.Token()
		for range 10 {
			next := <-tokens
			assert.Greater(t, next, last)
			last = next
		}
		time.Sleep(time.Minute)
		assert.EqualValues(t, 10, h.handed.Load())
		assert.Less(t, h.tried.Load()-tried, int32(100), "waiters behind the head ask now and then at most")
	})
}

// TestHandOverIsReleasedBeforeItIsGranted: by the events of one Client, its key never has
// two holders.
func TestHandOverIsReleasedBeforeItIsGranted(t *testing.T) {
	onHanding(t, func(t *testing.T, h *handing, _ *memlock.Store, _ lock.Locker) {
		var holders, most atomic.Int32
		l, err := lock.New(h, &lock.Options{Observer: func(_ context.Context, e lock.Event) {
			switch e.Kind {
			case lock.EventGranted:
				most.Store(max(most.Load(), holders.Add(1)))
			case lock.EventReleased:
				time.Sleep(time.Second)
				holders.Add(-1)
			}
		}})
		require.NoError(t, err)
		var all sync.WaitGroup
		for i := range 10 {
			ctx := t.Context()
			if i%2 == 0 {
				ctx = context.Background() // it makes its calls itself
			}
			all.Go(func() {
				lease, err := l.Acquire(ctx, "k")
				if assert.NoError(t, err) {
					time.Sleep(time.Second)
					assert.NoError(t, lease.Release(ctx))
				}
			})
		}
		all.Wait()
		assert.EqualValues(t, 9, h.handed.Load())
		assert.EqualValues(t, 1, most.Load())
		require.NoError(t, l.Close())
	})
}

func TestHandOverThatNobodyWaitsForIsGivenBack(t *testing.T) {
	for name, delay := range map[string][2]time.Duration{"before": {3 * time.Second, 0}, "after": {0, 3 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			onHanding(t, func(t *testing.T, h *handing, store *memlock.Store, l lock.Locker) {
				h.before, h.after = delay[0], delay[1]
				first, err := l.Acquire(t.Context(), "k")
				require.NoError(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				waited := make(chan error, 1)
				go func() {
					_, err := l.Acquire(ctx, "k")
					waited <- err
				}()
				time.Sleep(time.Second)
				require.NoError(t, first.Release(t.Context()))
				require.ErrorIs(t, <-waited, context.DeadlineExceeded)
				time.Sleep(3 * time.Second)
				synctest.Wait()
				other, err := memlock.New(t.Context(), &memlock.Options{Store: store})
				require.NoError(t, err)
				next, err := other.TryAcquire(t.Context(), "k")
				require.NoError(t, err)
				require.NoError(t, next.Release(t.Context()))
				require.NoError(t, other.Close())
			})
		})
	}
}

func TestHandOverThatHangsHoldsTheWaiterNoLongerThanTheRelease(t *testing.T) {
	onHanding(t, func(t *testing.T, h *handing, store *memlock.Store, l lock.Locker) {
		h.before = time.Hour
		first, err := l.Acquire(t.Context(), "k")
		require.NoError(t, err)
		got := make(chan lock.Lease, 1)
		go func() {
			lease, err := l.Acquire(t.Context(), "k")
			assert.NoError(t, err)
			got <- lease
		}()
		time.Sleep(time.Second)
		start := time.Now()
		require.ErrorIs(t, first.Release(t.Context()), lock.ErrOutcomeUnknown)
		second := <-got
		assert.Less(t, time.Since(start), 10*time.Second)
		time.Sleep(2 * time.Hour)
		require.NoError(t, second.Context().Err())
		require.NoError(t, second.Release(t.Context()))
	})
}

// stubborn releases nothing that was granted, for as long as it is told so.
type stubborn struct {
	*handing
	on atomic.Bool
}

func (s *stubborn) Release(ctx context.Context, h backend.Hold) error {
	if s.on.Load() && h.Token != 0 {
		return errors.New("connection reset")
	}
	return s.handing.Release(ctx, h)
}

// TestHandOverToAWaiterThatIsJustGivingUp: the waiter has stopped waiting for the
// answer and has not returned yet (its observer takes a moment), the release is
// given up too, and then the hand-over takes effect.
func TestHandOverToAWaiterThatIsJustGivingUp(t *testing.T) {
	onHanding(t, func(t *testing.T, h *handing, store *memlock.Store, _ lock.Locker) {
		h.before = 4 * time.Second
		s := &stubborn{handing: h}
		s.on.Store(true)
		l, err := lock.New(s, &lock.Options{TTL: time.Minute, Observer: func(_ context.Context, e lock.Event) {
			if e.Kind == lock.EventWaitEnded {
				time.Sleep(6 * time.Second)
			}
		}})
		require.NoError(t, err)
		first, err := l.Acquire(t.Context(), "k")
		require.NoError(t, err)
		waiting, giveUp := context.WithCancel(t.Context())
		waited := make(chan error, 1)
		go func() {
			_, err := l.Acquire(waiting, "k")
			waited <- err
		}()
		synctest.Wait()
		releasing, stop := context.WithTimeout(t.Context(), 2*time.Second)
		defer stop()
		time.AfterFunc(time.Second, giveUp)
		require.ErrorIs(t, first.Release(releasing), lock.ErrOutcomeUnknown)
		require.ErrorIs(t, <-waited, context.Canceled)
		s.on.Store(false)
		time.Sleep(2 * time.Second)
		other, err := memlock.New(t.Context(), &memlock.Options{Store: store})
		require.NoError(t, err)
		next, err := other.TryAcquire(t.Context(), "k")
		require.NoError(t, err, "a hold that nobody has keeps the key")
		require.NoError(t, next.Release(t.Context()))
		require.NoError(t, other.Close())
		require.NoError(t, l.Close())
	})
}

// refusing hands nothing over and says so, and somebody removes the record meanwhile.
type refusing struct {
	*handing
	store *memlock.Store
}

func (r refusing) HandOver(context.Context, backend.Hold, backend.Request) (backend.Grant, error) {
	r.handed.Add(1)
	r.store.Remove("k")
	return backend.Grant{}, backend.ErrUnavailable
}

// TestReleaseAfterARefusedHandOverTellsOfALoss: the hand-over was not applied, so the
// release after it, which finds no hold, was not the second of two.
func TestReleaseAfterARefusedHandOverTellsOfALoss(t *testing.T) {
	onHanding(t, func(t *testing.T, h *handing, store *memlock.Store, _ lock.Locker) {
		l, err := lock.New(refusing{h, store}, nil)
		require.NoError(t, err)
		first, err := l.Acquire(t.Context(), "k")
		require.NoError(t, err)
		got := make(chan lock.Lease, 1)
		go func() {
			lease, err := l.Acquire(t.Context(), "k")
			assert.NoError(t, err)
			got <- lease
		}()
		synctest.Wait()
		require.ErrorIs(t, first.Release(t.Context()), lock.ErrLost)
		require.EqualValues(t, 1, h.handed.Load())
		require.NoError(t, (<-got).Release(t.Context()))
		require.NoError(t, l.Close())
	})
}
