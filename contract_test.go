package lock_test

import (
	"context"
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

// relying is a backend whose waiters have places, and that holds the lock package to what
// package backend says a backend may rely on.
type relying struct {
	backend.Backend
	t *testing.T

	mu        sync.Mutex
	asked     bool
	notified  int
	lost      func(backend.ID, error)
	places    map[backend.ID]bool // since ever; true: Wait has failed and nobody has withdrawn
	released  []backend.Hold
	withdrawn int
}

func (r *relying) request(req backend.Request) {
	r.mu.Lock()
	r.asked = true
	r.mu.Unlock()
	assert.NoError(r.t, backend.ValidateKey(req.Key))
	assert.NoError(r.t, r.Guarantees().CheckTTL(req.TTL))
}

func (r *relying) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	r.request(req)
	return r.Backend.Try(ctx, req)
}

func (r *relying) Release(ctx context.Context, h backend.Hold) error {
	r.mu.Lock()
	r.released = append(r.released, h)
	r.mu.Unlock()
	return r.Backend.Release(ctx, h)
}

func (r *relying) NotifyLoss(lost func(backend.ID, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	assert.False(r.t, r.asked, "NotifyLoss was called after a request")
	r.notified++
	r.lost = lost
}

func (r *relying) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	r.request(req)
	r.mu.Lock()
	assert.NotContains(r.t, r.places, req.ID, "two places have one ID")
	r.places[req.ID] = false
	r.mu.Unlock()
	t, err := r.Backend.(backend.Queuer).Enqueue(ctx, req)
	if err != nil {
		return nil, err
	}
	return &reliedPlace{Ticket: t, id: req.ID, of: r, taken: time.Now()}, nil
}

type reliedPlace struct {
	backend.Ticket
	id    backend.ID
	of    *relying
	taken time.Time
}

func (p *reliedPlace) Wait(ctx context.Context) (backend.Grant, error) {
	assert.Zero(p.of.t, time.Since(p.taken), "nobody waited at a place") // in virtual time
	g, err := p.Ticket.Wait(ctx)
	p.of.mu.Lock()
	p.of.places[p.id] = err != nil
	p.of.mu.Unlock()
	return g, err
}

func (p *reliedPlace) Withdraw(ctx context.Context) error {
	p.of.mu.Lock()
	p.of.places[p.id] = false
	p.of.withdrawn++
	p.of.mu.Unlock()
	return p.Ticket.Withdraw(ctx)
}

// What package backend says that a backend may rely on. Requests have passed the checks.
// NotifyLoss comes once, before them, and its function does not block. Each place has an ID of
// its own, is waited at from the start, and is withdrawn after an error. A hold whose grant is unknown has no token.
func TestBackendsMayRelyOnTheLockPackage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store := memlock.NewStore(nil)
		inner, err := memlock.NewBackend(ctx, &memlock.Options{Store: store, Queue: true})
		require.NoError(t, err)
		faults := faultlock.New(inner, nil)
		r := &relying{Backend: faults.Backend(), t: t, places: map[backend.ID]bool{}}
		stalled := make(chan struct{})
		l, err := lock.New(r, &lock.Options{Observer: func(_ context.Context, ev lock.Event) {
			if ev.Kind == lock.EventLost {
				<-stalled
			}
		}})
		require.NoError(t, err)
		other, err := memlock.New(ctx, &memlock.Options{Store: store, Queue: true})
		require.NoError(t, err)
		defer other.Close()

		get := map[string]func(context.Context, string, ...lock.Option) (lock.Lease, error){"try": l.TryAcquire, "acquire": l.Acquire}
		for how, get := range get {
			for _, key := range []string{"", "a\tb", "\xff", string(make([]byte, 600))} {
				_, err := get(ctx, key)
				assert.ErrorIs(t, err, lock.ErrInvalid, "%s of the key %q", how, key)
			}
			for _, ttl := range []time.Duration{-1, 0, time.Nanosecond, time.Second + 1, 1 << 62} {
				lease, err := get(ctx, "k", lock.WithTTL(ttl))
				if err == nil {
					assert.NoError(t, lease.Release(ctx))
					continue
				}
				assert.ErrorIs(t, err, lock.ErrInvalid, "%s with a TTL of %s", how, ttl)
			}
		}

		// A place that fails twice, and a third one.
		held, err := other.TryAcquire(ctx, "k")
		require.NoError(t, err)
		places := len(r.places)
		faults.Next(2, faultlock.FailBefore(), faultlock.OpWait)
		time.AfterFunc(time.Second, func() { assert.NoError(t, held.Release(ctx)) })
		lease, err := l.Acquire(ctx, "k")
		require.NoError(t, err)
		assert.Len(t, r.places, places+3)
		assert.GreaterOrEqual(t, r.withdrawn, 2)
		for id, left := range r.places {
			assert.False(t, left, "the place of %s was not withdrawn after its error", id)
		}
		require.NoError(t, lease.Release(ctx))
		require.Equal(t, lease.Token(), r.released[len(r.released)-1].Token)

		// A grant without an answer.
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		faults.Next(1, faultlock.FailAfter(), faultlock.OpTry)
		before := len(r.released)
		_, err = l.TryAcquire(short, "unknown")
		require.ErrorIs(t, err, lock.ErrOutcomeUnknown)
		time.Sleep(time.Second)
		require.Greater(t, len(r.released), before)
		require.Zero(t, r.released[before].Token)

		// Losses, of which somebody is told who does not return.
		first, err := l.TryAcquire(ctx, "first")
		require.NoError(t, err)
		second, err := l.TryAcquire(ctx, "second")
		require.NoError(t, err)
		start := time.Now()
		for _, lost := range []lock.Lease{first, second} {
			at, err := lock.HeldOn[*relying](lost)
			require.NoError(t, err)
			r.lost(at.Hold.ID, backend.ErrSessionLost)
			assert.ErrorIs(t, cause(lost), lock.ErrSessionLost)
		}
		assert.Zero(t, time.Since(start), "to tell of a loss took time")
		close(stalled)
		require.NoError(t, l.Close())
		assert.Equal(t, 1, r.notified)
	})
}
