package lock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/mortiselock/lock/backend"
)

// batchSize is how many renewals share one round trip where the backend can.
const batchSize = 128

// sendRenewals sends the renewals that are due, on the goroutines of a bounded
// pool. A renewal that hangs costs one of them until its context ends; the
// deadlines do not depend on them.
func (c *client) sendRenewals() {
	c.sched.mu.Lock()
	due := c.dueRenewals
	c.dueRenewals = nil
	c.sched.mu.Unlock()
	together := due[:0:0]
	for _, l := range due {
		if c.batch == nil || c.counted && l.hold.Owner != "" {
			c.renewers.run(func() { c.renew(l) })
		} else {
			together = append(together, l)
		}
	}
	if len(together) == 1 {
		c.renewers.run(func() { c.renew(together[0]) })
		return
	}
	for due := together; len(due) > 0; {
		n := min(len(due), batchSize)
		some := due[:n]
		c.renewers.run(func() { c.renewBatch(some) })
		due = due[n:]
	}
}

// renewalContext bounds one renewal by a third of the TTL, so that at least two
// can fail before the deadline, and like every request.
func (c *client) renewalContext(ttl time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.life, min(ttl/3, closeLimit))
}

func (c *client) renew(l *lease) {
	if l.ctx.Err() != nil || !c.calls.add() {
		return
	}
	defer c.calls.done()
	ctx, cancel := c.renewalContext(l.hold.TTL)
	defer cancel()
	start := c.clock.Now()
	v, err := whileOpen(ctx, c, nil, func(ctx context.Context) (backend.Validity, error) {
		return c.ops.Renew(ctx, l.hold)
	})
	c.renewalEnded(ctx, l, v, err, start)
}

func (c *client) renewBatch(leases []*lease) {
	live := make([]*lease, 0, len(leases))
	holds := make([]backend.Hold, 0, len(leases))
	var ttl time.Duration
	for _, l := range leases {
		if l.ctx.Err() == nil {
			live, holds, ttl = append(live, l), append(holds, l.hold), max(ttl, l.hold.TTL)
		}
	}
	if len(live) == 0 || !c.calls.add() {
		return
	}
	defer c.calls.done()
	ctx, cancel := c.renewalContext(ttl)
	defer cancel()
	start := c.clock.Now()
	answers, err := whileOpen(ctx, c, nil, func(ctx context.Context) ([]backend.Renewal, error) {
		return c.batch.RenewBatch(ctx, holds), nil
	})
	if err == nil && len(answers) != len(live) {
		err = errors.New("the backend answered for another number of holds than it was asked for")
	}
	for i, l := range live {
		if err != nil {
			c.renewalEnded(ctx, l, backend.Validity{}, err, start)
		} else {
			c.renewalEnded(ctx, l, answers[i].Validity, answers[i].Err, start)
		}
	}
}

// renewalEnded tells the hold how a renewal that began at start ended: extended,
// still held, gone, or unknown.
func (c *client) renewalEnded(ctx context.Context, l *lease, v backend.Validity, err error, start backend.Instant) {
	v.Sent = min(v.Sent, start)
	l.step(func(h *hold, now backend.Instant) action {
		switch {
		case err == nil:
			return h.renewed(now, v, rand.Float64())
		case errors.Is(err, ErrLost):
			return h.gone(now, err)
		case errors.Is(err, ErrNotHeld):
			return h.gone(now, ErrTakenOver)
		}
		return h.failed(now, rand.Float64())
	})
	if err != nil && !errors.Is(err, ErrNotHeld) && !errors.Is(err, ErrClosed) && l.ctx.Context.Err() == nil {
		c.log.Warn("lock renewal failed, trying again", "key", l.hold.Key, "token", l.hold.Token, "error", err)
	}
	if c.observer != nil {
		c.observe(ctx, Event{
			Kind: EventRenewal, Key: l.hold.Key, Token: l.hold.Token,
			Duration: c.clock.Now().Sub(start), Err: err,
		})
	}
}
