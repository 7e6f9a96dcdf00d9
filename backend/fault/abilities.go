package faultlock

import (
	"context"
	"fmt"

	"github.com/mortiselock/lock/backend"
)

// ability is a set of optional interfaces.
type ability uint

// The optional interfaces that change what callers do by being there.
const (
	watches ability = 1 << iota
	queues
	batches
	handsOver
	inspects
	forces
	allAbilities ability = 1<<iota - 1
)

// abilitiesOf is what a backend can do.
func abilitiesOf(b backend.Backend) ability {
	var a ability
	for bit, has := range map[ability]bool{
		watches:   is[backend.Watcher](b),
		queues:    is[backend.Queuer](b),
		batches:   is[backend.BatchRenewer](b),
		handsOver: is[backend.HandOverer](b),
		inspects:  is[backend.Inspector](b),
		forces:    is[backend.ForceReleaser](b),
	} {
		if has {
			a |= bit
		}
	}
	return a
}

func is[T any](b backend.Backend) bool {
	_, ok := b.(T)
	return ok
}

// One type for each ability, so that present can put together what is there.
type (
	watching   struct{ s *seam }
	queueing   struct{ s *seam }
	batching   struct{ s *seam }
	handing    struct{ s *seam }
	inspecting struct{ s *seam }
	forcing    struct{ s *seam }
)

// Enqueue implements backend.Queuer.
func (q queueing) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	s := q.s
	withdraw := func(t backend.Ticket) {
		s.f.background(func() {
			ctx, cancel := s.detached(ctx)
			defer cancel()
			_ = t.Withdraw(ctx) // the place ends with its TTL at the latest
		})
	}
	t, err := carry(ctx, s, OpEnqueue, req.Key, withdraw, func(ctx context.Context) (backend.Ticket, error) {
		return s.inner.(backend.Queuer).Enqueue(ctx, req)
	})
	if err != nil {
		return nil, err
	}
	return &ticket{s: s, inner: t, req: req}, nil
}

// ticket is a place in the queue of the inner backend.
type ticket struct {
	s     *seam
	inner backend.Ticket
	req   backend.Request
}

// Wait implements backend.Ticket.
func (t *ticket) Wait(ctx context.Context) (backend.Grant, error) {
	g, err := carry(ctx, t.s, OpWait, t.req.Key, nil, t.inner.Wait)
	return t.s.granted(t.req, g, err)
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
func (b batching) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	s := b.s
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
			out[i].Validity, out[i].Err = meeting(ctx, s, withoutHang(d), nil, s.renewing(hold))
			continue
		}
		together, at = append(together, hold), append(at, i)
	}
	if len(together) == 0 {
		return out
	}
	for k, r := range b.roundTrip(ctx, together, before, after) {
		out[at[k]] = r
	}
	return out
}

// roundTrip renews the holds in one request, with the delays of its ways.
func (b batching) roundTrip(ctx context.Context, holds []backend.Hold, before, after decision) []backend.Renewal {
	answers, err := meeting(ctx, b.s, before, nil, func(ctx context.Context) ([]backend.Renewal, error) {
		return meeting(ctx, b.s, after, nil, func(ctx context.Context) ([]backend.Renewal, error) {
			return b.s.inner.(backend.BatchRenewer).RenewBatch(ctx, holds), nil
		})
	})
	if err == nil && len(answers) != len(holds) {
		err = fmt.Errorf("faultlock: the inner backend gave %d answers to %d renewals", len(answers), len(holds))
	}
	if err != nil {
		answers = make([]backend.Renewal, len(holds))
		for i := range answers {
			answers[i].Err = err
		}
	}
	return answers
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
func (h handing) HandOver(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
	h.s.ended(from.ID)
	g, err := carry(ctx, h.s, OpHandOver, to.Key, nil, func(ctx context.Context) (backend.Grant, error) {
		return h.s.inner.(backend.HandOverer).HandOver(ctx, from, to)
	})
	return h.s.granted(to, g, err)
}

// Inspect implements backend.Inspector.
func (i inspecting) Inspect(ctx context.Context, key string) (backend.Record, error) {
	return carry(ctx, i.s, OpInspect, key, nil, func(ctx context.Context) (backend.Record, error) {
		return i.s.inner.(backend.Inspector).Inspect(ctx, key)
	})
}

// ForceRelease implements backend.ForceReleaser.
func (o forcing) ForceRelease(ctx context.Context, key string, token uint64) error {
	_, err := carry(ctx, o.s, OpForceRelease, key, nil, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, o.s.inner.(backend.ForceReleaser).ForceRelease(ctx, key, token)
	})
	return err
}
