package faultlock

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/mortiselock/lock/backend"
)

// faulty implements what it disturbs of the abilities; backend.As offers only
// what the inner backend has too.
var (
	_ backend.Wrapper       = (*faulty)(nil)
	_ backend.Watcher       = (*faulty)(nil)
	_ backend.Queuer        = (*faulty)(nil)
	_ backend.BatchRenewer  = (*faulty)(nil)
	_ backend.HandOverer    = (*faulty)(nil)
	_ backend.ReleaseTeller = (*faulty)(nil)
	_ backend.Inspector     = (*faulty)(nil)
	_ backend.ForceReleaser = (*faulty)(nil)
	_ backend.LossNotifier  = (*faulty)(nil)
)

// Unwrap implements backend.Wrapper.
func (s *faulty) Unwrap() backend.Backend { return s.inner }

// lacks is for who did not ask backend.As.
func lacks[T any]() error {
	return fmt.Errorf("%w: the inner backend is no %s", backend.ErrUnsupported, reflect.TypeFor[T]().Name())
}

// primitives is the faulty without the abilities that it disturbs. What is left changes
// nothing, and [Faults.Lose] needs it.
type primitives struct {
	backend.Backend
	s *faulty
}

func (p primitives) Clock() backend.Clock                             { return p.s.Clock() }
func (p primitives) Partition(key string) string                      { return p.s.Partition(key) }
func (p primitives) NotifyLoss(lost func(id backend.ID, cause error)) { p.s.NotifyLoss(lost) }

// Enqueue implements backend.Queuer.
func (s *faulty) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	inner, ok := backend.As[backend.Queuer](s.inner)
	if !ok {
		return nil, lacks[backend.Queuer]()
	}
	withdraw := func(t backend.Ticket) {
		if t == nil { // a mistake of the inner backend, which is handed on as it is
			return
		}
		s.f.background(func() {
			ctx, cancel := s.detached(ctx)
			defer cancel()
			_ = t.Withdraw(ctx) // the place ends with its TTL at the latest
		})
	}
	t, err := carry(ctx, s, OpEnqueue, req.Key, withdraw, func(ctx context.Context) (backend.Ticket, error) {
		return inner.Enqueue(ctx, req)
	})
	if err != nil || t == nil {
		return nil, err
	}
	return &ticket{s: s, inner: t, req: req}, nil
}

// ticket is a place in the queue of the inner backend.
type ticket struct {
	s     *faulty
	inner backend.Ticket
	req   backend.Request
}

// Wait implements backend.Ticket.
func (t *ticket) Wait(ctx context.Context) (backend.Grant, error) {
	g, err := carry(ctx, t.s, OpWait, t.req.Key, nil, t.inner.Wait)
	return t.s.granted(t.req, g, err)
}

// Behind implements backend.Ticket.
func (t *ticket) Behind() bool { return t.inner.Behind() }

// MayArrive implements backend.LateTicket.
func (t *ticket) MayArrive() bool {
	l, ok := t.inner.(backend.LateTicket)
	return ok && l.MayArrive()
}

// Withdraw implements backend.Ticket.
func (t *ticket) Withdraw(ctx context.Context) error {
	t.s.ended(t.req.ID)
	_, err := carry(ctx, t.s, OpWithdraw, t.req.Key, nil, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, t.inner.Withdraw(ctx)
	})
	return err
}

// RenewBatch implements backend.BatchRenewer. See OpRenew.
func (s *faulty) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	out := make([]backend.Renewal, len(holds))
	var (
		together      []backend.Hold
		at            []int // the places of together in holds
		before, after decision
	)
	for i, hold := range holds {
		d := s.f.meet(ctx, OpRenew, hold.Key)
		switch d.kind {
		case delayBefore:
			before = longer(before, d)
		case delayAfter:
			after = longer(after, d)
		case pass:
		default:
			out[i].Validity, out[i].Err = meeting(ctx, s, withoutHang(d), nil, timed(s, OpRenew, hold.Key, s.renewing(hold)))
			continue
		}
		together, at = append(together, hold), append(at, i)
	}
	if len(together) == 0 {
		return out
	}
	for k, r := range s.roundTrip(ctx, together, before, after) {
		out[at[k]] = r
	}
	return out
}

// roundTrip renews the holds in one request, with the delays of its ways.
func (s *faulty) roundTrip(ctx context.Context, holds []backend.Hold, before, after decision) []backend.Renewal {
	inner, ok := backend.As[backend.BatchRenewer](s.inner)
	if !ok {
		return failed(len(holds), lacks[backend.BatchRenewer]())
	}
	answers, err := meeting(ctx, s, before, nil, func(ctx context.Context) ([]backend.Renewal, error) {
		return meeting(ctx, s, after, nil, func(ctx context.Context) ([]backend.Renewal, error) {
			begun := time.Now()
			answers := inner.RenewBatch(ctx, holds)
			if took := time.Since(begun); s.f.answer != nil && len(answers) == len(holds) {
				for i, a := range answers {
					s.f.answer(OpRenew, holds[i].Key, took, a.Err)
				}
			}
			return answers, nil
		})
	})
	if err == nil && len(answers) != len(holds) {
		err = fmt.Errorf("faultlock: the inner backend gave %d answers to %d renewals", len(answers), len(holds))
	}
	if err != nil {
		return failed(len(holds), err)
	}
	return answers
}

// failed are n renewals with the error.
func failed(n int, err error) []backend.Renewal {
	out := make([]backend.Renewal, n)
	for i := range out {
		out[i].Err = err
	}
	return out
}

func longer(a, b decision) decision {
	if b.delay > a.delay {
		return b
	}
	return a
}

// withoutHang turns a hang, which would keep the answers of other holds back, into
// a loss of the request or of the answer.
func withoutHang(d decision) decision {
	switch d.kind {
	case hangBefore:
		d.kind = drop
	case hangAfter:
		d.kind = failAfter
	}
	return d
}

// HandOver implements backend.HandOverer.
func (s *faulty) HandOver(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
	inner, ok := backend.As[backend.HandOverer](s.inner)
	if !ok {
		return backend.Grant{}, lacks[backend.HandOverer]()
	}
	s.ended(from.ID)
	g, err := carry(ctx, s, OpHandOver, to.Key, nil, func(ctx context.Context) (backend.Grant, error) {
		return inner.HandOver(ctx, from, to)
	})
	return s.granted(to, g, err)
}

// Inspect implements backend.Inspector.
func (s *faulty) Inspect(ctx context.Context, key string) (backend.Record, error) {
	inner, ok := backend.As[backend.Inspector](s.inner)
	if !ok {
		return backend.Record{}, lacks[backend.Inspector]()
	}
	return carry(ctx, s, OpInspect, key, nil, func(ctx context.Context) (backend.Record, error) {
		return inner.Inspect(ctx, key)
	})
}

// ForceRelease implements backend.ForceReleaser.
func (s *faulty) ForceRelease(ctx context.Context, key string, token uint64) error {
	inner, ok := backend.As[backend.ForceReleaser](s.inner)
	if !ok {
		return lacks[backend.ForceReleaser]()
	}
	_, err := carry(ctx, s, OpForceRelease, key, nil, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, inner.ForceRelease(ctx, key, token)
	})
	return err
}
