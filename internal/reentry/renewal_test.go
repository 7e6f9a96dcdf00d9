package reentry

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/call"
)

// slowHold is oneHold whose renewals take some time, or end with their context.
type slowHold struct {
	oneHold
	takes                atomic.Int64
	sent, underWay, most atomic.Int32 // most under way at a time
}

func (s *slowHold) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	v := s.valid(h.TTL)
	s.sent.Add(1)
	s.most.Store(max(s.most.Load(), s.underWay.Add(1)))
	defer s.underWay.Add(-1)
	select {
	case <-time.After(time.Duration(s.takes.Load())):
		return v, nil
	case <-ctx.Done():
		return backend.Validity{}, ctx.Err()
	}
}

// locker has an owner's holds on a slowHold, and the calls of a Locker.
type locker struct {
	*slowHold
	calls *call.Calls
	r     *Counter
	holds []backend.Hold
}

func newLocker(t *testing.T, ttl time.Duration, holds int) *locker {
	t.Helper()
	l := &locker{slowHold: &slowHold{}, calls: call.NewCalls()}
	l.r = New(l.calls.Open, l.slowHold, backend.RuntimeClock())
	l.r.NotifyLoss(func(backend.ID, error) {})
	for range holds {
		req := backend.Request{Key: "k", ID: backend.NewID(), Owner: "me", TTL: ttl}
		g, err := l.r.Try(t.Context(), req)
		require.NoError(t, err)
		hold := backend.HoldOf(req)
		hold.Token = g.Token
		l.holds = append(l.holds, hold)
	}
	l.sent.Store(0)
	return l
}

type renewed struct {
	v     backend.Validity
	err   error
	after time.Duration
}

// renew renews as the Locker does, for so long at most.
func (l *locker) renew(limit time.Duration, hold int) <-chan renewed {
	answer := make(chan renewed, 1)
	go func() {
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		v, err := call.WhileOpen(ctx, l.calls, nil, func(ctx context.Context) (backend.Validity, error) {
			return l.r.Renew(ctx, l.holds[hold])
		})
		answer <- renewed{v, err, time.Since(began)}
	}()
	synctest.Wait()
	return answer
}

// end closes the Locker, which must not take time. The bubble fails if a goroutine is left.
func (l *locker) end(t *testing.T) {
	t.Helper()
	began := time.Now()
	l.calls.Shut()
	<-l.calls.Idle()
	assert.Zero(t, time.Since(began), "the end had to wait")
	l.calls.Kill()
}

// The second has waited so long that it has no time left for its own request, which the
// third waits for.
func TestRequestGoesOnWithoutItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, time.Minute, 3)
		l.takes.Store(int64(time.Second))
		began := backend.RuntimeClock().Now()
		first := l.renew(5*time.Second, 0)
		second := l.renew(1400*time.Millisecond, 1)
		third := l.renew(2200*time.Millisecond, 2)
		require.NoError(t, (<-first).err)
		left := <-second
		require.ErrorIs(t, left.err, context.DeadlineExceeded)
		assert.Equal(t, 1400*time.Millisecond, left.after, "did not return at once")
		got := <-third
		require.NoError(t, got.err)
		assert.Equal(t, time.Second, got.v.Sent.Sub(began), "is not of the request after it asked")
		assert.EqualValues(t, 2, l.sent.Load())
		assert.EqualValues(t, 1, l.most.Load(), "under way at a time")
		l.end(t)
	})
}

// A request that nobody else waits for ends with its caller, and holds nobody up.
func TestRequestOfOneEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, 3*time.Second, 2)
		l.takes.Store(int64(time.Hour))
		require.Error(t, (<-l.renew(100*time.Millisecond, 0)).err)
		synctest.Wait()
		assert.Zero(t, l.underWay.Load())
		l.takes.Store(int64(900 * time.Millisecond))
		got := <-l.renew(2*time.Second, 1)
		require.NoError(t, got.err)
		assert.Equal(t, 900*time.Millisecond, got.after, "had to wait")
		l.end(t)
	})
}

// A request that hangs has a third of the TTL, however long its caller would wait.
func TestRequestThatHangsLeavesTimeForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, 3*time.Second, 1)
		l.takes.Store(int64(time.Hour))
		got := <-l.renew(2*time.Second, 0)
		require.ErrorIs(t, got.err, context.DeadlineExceeded)
		assert.Equal(t, time.Second, got.after)
		l.end(t)
	})
}

// Nothing is left of a request whose caller has gone.
func TestRequestEndsWithTheLocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, time.Minute, 3)
		l.takes.Store(int64(time.Second))
		first := l.renew(5*time.Second, 0)
		second, waiting := l.renew(1400*time.Millisecond, 1), l.renew(time.Minute, 2)
		require.NoError(t, (<-first).err)
		l.takes.Store(int64(time.Hour))
		require.Error(t, (<-second).err)
		assert.EqualValues(t, 1, l.underWay.Load())
		l.end(t)
		assert.Zero(t, l.underWay.Load())
		require.ErrorIs(t, (<-waiting).err, backend.ErrClosed)
	})
}

// A renewal whose time is over when it gets the turn sends nothing.
func TestNothingIsSentForWhoHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, time.Minute, 1)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		for range 20 {
			_, err := l.r.Renew(over, l.holds[0])
			require.ErrorIs(t, err, context.Canceled)
		}
		assert.Zero(t, l.sent.Load())
		l.end(t)
	})
}
