package faultlock

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock/backend"
)

// faulty is the backend that callers see, with the three primitives. The optional
// interfaces are beside it (abilities.go).
type faulty struct {
	f     *Faults
	inner backend.Backend
	clock backend.Clock
}

func newFaulty(f *Faults, inner backend.Backend) *faulty {
	s := &faulty{f: f, inner: inner, clock: backend.SystemClock()}
	if c, ok := backend.As[backend.Clocked](inner); ok {
		s.clock = c.Clock()
	}
	return s
}

// Guarantees implements backend.Backend. They are those of the inner backend.
func (s *faulty) Guarantees() backend.Guarantees { return s.inner.Guarantees() }

// Clock implements backend.Clocked.
func (s *faulty) Clock() backend.Clock { return s.clock }

// Partition implements backend.Partitioner.
func (s *faulty) Partition(key string) string {
	if p, ok := backend.As[backend.Partitioner](s.inner); ok {
		return p.Partition(key)
	}
	return ""
}

// Close implements backend.Backend.
func (s *faulty) Close() error {
	if !s.f.close() {
		return nil
	}
	return s.inner.Close()
}

// NotifyLoss implements backend.LossNotifier.
func (s *faulty) NotifyLoss(lost func(id backend.ID, cause error)) {
	s.f.mu.Lock()
	s.f.notify = lost
	s.f.mu.Unlock()
	if n, ok := backend.As[backend.LossNotifier](s.inner); ok {
		n.NotifyLoss(lost)
	}
}

// Try implements backend.Backend.
func (s *faulty) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := carry(ctx, s, OpTry, req.Key, nil, func(ctx context.Context) (backend.Grant, error) {
		return s.inner.Try(ctx, req)
	})
	return s.granted(req, g, err)
}

// Renew implements backend.Backend.
func (s *faulty) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	return carry(ctx, s, OpRenew, hold.Key, nil, s.renewing(hold))
}

func (s *faulty) renewing(hold backend.Hold) send[backend.Validity] {
	return func(ctx context.Context) (backend.Validity, error) { return s.inner.Renew(ctx, hold) }
}

// Release implements backend.Backend.
func (s *faulty) Release(ctx context.Context, hold backend.Hold) error {
	_, err := s.ReleaseTelling(ctx, hold)
	return err
}

// ReleaseTelling implements backend.ReleaseTeller.
func (s *faulty) ReleaseTelling(ctx context.Context, hold backend.Hold) (others int, err error) {
	s.ended(hold.ID)
	return carry(ctx, s, OpRelease, hold.Key, nil, func(ctx context.Context) (int, error) {
		if t, ok := backend.As[backend.ReleaseTeller](s.inner); ok {
			if others, err := t.ReleaseTelling(ctx, hold); !errors.Is(err, backend.ErrUnsupported) {
				return others, err
			}
		}
		return -1, s.inner.Release(ctx, hold)
	})
}

// granted remembers the holds that Lose can hit.
func (s *faulty) granted(req backend.Request, g backend.Grant, err error) (backend.Grant, error) {
	if err == nil {
		s.f.mu.Lock()
		s.f.held[req.ID] = req.Key
		s.f.mu.Unlock()
	}
	return g, err
}

func (s *faulty) ended(id backend.ID) {
	s.f.mu.Lock()
	delete(s.f.held, id)
	s.f.mu.Unlock()
}

// send sends a request to the inner backend.
type send[T any] func(ctx context.Context) (T, error)

// carry carries one call, with whatever it meets. What was applied and whose answer
// nobody gets is given to orphan, if that is not nil.
func carry[T any](ctx context.Context, s *faulty, op Op, key string, orphan func(T), do send[T]) (T, error) {
	return meeting(ctx, s, s.f.meet(ctx, op, key), orphan, timed(s, op, key, do))
}

// timed tells how long the inner backend takes.
func timed[T any](s *faulty, op Op, key string, do send[T]) send[T] {
	if s.f.answer == nil {
		return do
	}
	return func(ctx context.Context) (T, error) {
		begun := time.Now()
		v, err := do(ctx)
		s.f.answer(op, key, time.Since(begun), err)
		return v, err
	}
}

// meeting carries a call about which was decided.
func meeting[T any](ctx context.Context, s *faulty, d decision, orphan func(T), do send[T]) (v T, err error) {
	var none T
	lost := func() {
		if err == nil && orphan != nil {
			orphan(v)
		}
	}
	if s.f.life.Err() != nil {
		return none, backend.ErrClosed
	}
	if d.deaf && d.op != OpWatch {
		var cancel context.CancelFunc
		ctx, cancel = s.detached(ctx)
		defer cancel()
	}
	switch d.kind {
	case failBefore, drop:
		return none, d.failure(d.op, d.key)
	case failAfter:
		v, err = do(ctx)
		lost()
		return none, d.failure(d.op, d.key)
	case applyLate:
		if d.op.appliesLate() {
			s.f.after(d.delay, func() {
				ctx, cancel := s.detached(ctx)
				defer cancel()
				v, err := do(ctx)
				s.f.landed(d, err)
				if err == nil && orphan != nil {
					orphan(v)
				}
			})
		}
		return none, d.failure(d.op, d.key)
	case duplicate:
		v, err = do(ctx)
		if again, e := do(ctx); err != nil && e == nil {
			return again, nil
		}
		return v, err
	case delayBefore, hangBefore:
		if err := s.f.pause(ctx, d); err != nil {
			return none, err
		}
		return do(ctx)
	case delayAfter, hangAfter:
		v, err = do(ctx)
		if early := s.f.pause(ctx, d); early != nil {
			lost()
			return none, early
		}
		return v, err
	}
	return do(ctx)
}

// detached is the context of a request that nobody waits for: it keeps the values
// of the caller's context, and ends with the backend.
func (s *faulty) detached(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(s.f.life, cancel)
	return ctx, func() { stop(); cancel() }
}
