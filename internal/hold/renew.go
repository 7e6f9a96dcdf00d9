package hold

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/call"
	"github.com/mortiselock/lock/internal/schedule"
)

// batchSize is how many renewals share one round trip where the backend can.
const batchSize = 128

// dueRenewal is a renewal that is to be sent, with what served the key before.
type dueRenewal struct {
	l    *Lease
	part string
}

// renewSoon notes a renewal that is due, and returns what sends all that are noted. The
// scheduler's mutex is held.
func (c *Leases) renewSoon(l *Lease) func() {
	c.dueRenewals = append(c.dueRenewals, dueRenewal{l, l.part})
	if len(c.dueRenewals) > 1 {
		return nil
	}
	return c.sendRenewals
}

// batched reports whether the lease may be renewed together with others.
func (c *Leases) batched(l *Lease) bool {
	return c.batch != nil && !c.counted(l)
}

// counted reports whether the hold is one of an owner whose holds are counted on this side.
func (c *Leases) counted(l *Lease) bool { return c.server.Counted && l.hold.Owner != "" }

// takeAlong fills up the batches in which the renewals go that are due, with those that
// are due soon: within a hundredth of their TTL, which costs one renewal more in thirty.
// Those that an earlier call has seen, and that wait for a busy processor, have their batches.
// The scheduler's mutex is held.
func (c *Leases) takeAlong(now backend.Instant) {
	room := map[string]int{} // in the last batch of each part
	total := 0
	var window time.Duration
	for _, d := range c.dueRenewals[c.takenAlong:] {
		if !c.batched(d.l) {
			continue
		}
		if room[d.part] == 0 {
			room[d.part] = batchSize
			total += batchSize
		}
		room[d.part]--
		total--
		window = max(window, soon(d.l))
	}
	c.server.Sched.Early(now.Add(window), total, 4*batchSize, func(e schedule.Entry, at backend.Instant) (backend.Instant, bool) {
		r, ok := e.(*renewals)
		l := (*Lease)(r)
		if !ok || room[l.part] == 0 || !c.batched(l) || at > now.Add(soon(l)) || now >= l.state.ends() {
			return at, false
		}
		room[l.part]--
		l.state.renewAt = min(l.state.renewAt, now)
		next, _ := r.Due(now) // it is not the first, so it sends nothing
		return next, true
	})
	c.takenAlong = len(c.dueRenewals)
}

// soon is how much earlier than it is due a renewal may be sent.
func soon(l *Lease) time.Duration { return l.hold.TTL / 100 }

// sendRenewals sends the renewals that are due, on the goroutines of a bounded
// pool. A renewal that hangs keeps its goroutine until its context ends, and its place
// for a moment; the deadlines do not depend on them.
func (c *Leases) sendRenewals() {
	c.server.Sched.Lock()
	due := c.dueRenewals
	c.dueRenewals, c.takenAlong = nil, 0
	c.server.Sched.Unlock()
	together := map[string][]*Lease{}
	for _, d := range due {
		l, part := d.l, c.server.Partition(d.l.hold.Key)
		if part != d.part {
			c.server.Sched.Lock()
			l.part = part
			c.server.Sched.Unlock()
		}
		if c.batched(l) {
			together[part] = append(together[part], l)
		} else {
			c.renewers.Run(part, hangsAfter(l), func() { c.renew(l) })
		}
	}
	for part, due := range together {
		for some := range slices.Chunk(due, batchSize) {
			send := func() { c.renewBatch(some) }
			if len(some) == 1 {
				send = func() { c.renew(some[0]) }
			}
			c.renewers.Run(part, hangsAfter(some...), send)
		}
	}
}

// hangsAfter is how long the renewal of some leases may take before it is taken to
// hang: little to those with a short TTL.
func hangsAfter(leases ...*Lease) time.Duration {
	d := call.Patience
	for _, l := range leases {
		d = min(d, l.hold.TTL/30)
	}
	return d
}

func (c *Leases) renew(l *Lease) {
	if l.Context().Err() != nil || !c.server.Calls.Add() {
		return
	}
	defer c.server.Calls.Done()
	limit := call.RenewalLimit(l.hold.TTL)
	if c.counted(l) {
		limit *= 2 // the owner's renewal under way has its time first
	}
	ctx, cancel := context.WithTimeout(c.server.Calls.Life, limit)
	defer cancel()
	start := c.server.Clock.Now()
	v, err := call.WhileOpen(ctx, c.server.Calls, nil, func(ctx context.Context) (backend.Validity, error) {
		return c.server.Backend.Renew(ctx, l.hold)
	})
	c.renewalEnded(ctx, l, v, err, start, rand.Float64())
}

// renewBatch renews the leases in one round trip. They get the same time for the next
// one, so that they stay together.
func (c *Leases) renewBatch(leases []*Lease) {
	live := make([]*Lease, 0, len(leases))
	holds := make([]backend.Hold, 0, len(leases))
	var ttl time.Duration
	for _, l := range leases {
		if l.Context().Err() == nil {
			live, holds, ttl = append(live, l), append(holds, l.hold), max(ttl, l.hold.TTL)
		}
	}
	if len(live) == 0 || !c.server.Calls.Add() {
		return
	}
	defer c.server.Calls.Done()
	ctx, cancel := context.WithTimeout(c.server.Calls.Life, call.RenewalLimit(ttl))
	defer cancel()
	start := c.server.Clock.Now()
	answers, err := call.WhileOpen(ctx, c.server.Calls, nil, func(ctx context.Context) ([]backend.Renewal, error) {
		return c.batch.RenewBatch(ctx, holds), nil
	})
	if err == nil && len(answers) != len(live) {
		err = errors.New("the backend answered for another number of holds than it was asked for")
	}
	roll := rand.Float64()
	for i, l := range live {
		switch {
		case err != nil:
			c.renewalEnded(ctx, l, backend.Validity{}, err, start, roll)
		case errors.Is(answers[i].Err, backend.ErrUnsupported): // declined
			c.renewers.Run(c.server.Partition(l.hold.Key), hangsAfter(l), func() { c.renew(l) })
		default:
			c.renewalEnded(ctx, l, answers[i].Validity, answers[i].Err, start, roll)
		}
	}
}

// renewalEnded tells the hold how a renewal that began at start ended: extended,
// still held, gone, or unknown. roll spreads the next one.
func (c *Leases) renewalEnded(ctx context.Context, l *Lease, v backend.Validity, err error, start backend.Instant, roll float64) {
	v.Sent = min(v.Sent, start)
	l.step(func(h *machine, now backend.Instant) action {
		switch {
		case err == nil:
			return h.renewed(now, v, roll)
		case errors.Is(err, backend.ErrLost):
			return h.gone(now, err)
		case errors.Is(err, backend.ErrNotHeld):
			return h.gone(now, backend.ErrTakenOver)
		}
		return h.failed(now, roll)
	})
	what := call.Renewed
	if err != nil {
		what = call.RenewalFailed
	}
	l.logRenewal(v, err)
	l.span.Tell(ctx, what, start, err)
}

// logRenewal logs that renewals begin to fail, and that they don't any more, and not each of
// those that fail between.
func (l *Lease) logRenewal(v backend.Validity, err error) {
	log := l.c.server.Log
	switch {
	case l.end.why() != nil: // its end is logged
	case err == nil && v.For > 0:
		if l.failing.Swap(false) {
			log.Info("lock renewed again", "key", l.hold.Key, "token", l.hold.Token)
		}
	case err != nil && !errors.Is(err, backend.ErrClosed):
		if !l.failing.Swap(true) {
			log.Warn("lock renewal failed, trying again", "key", l.hold.Key, "token", l.hold.Token, "error", err)
		}
	}
}
