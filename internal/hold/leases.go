// Package hold keeps holds from their grant to their end: their contexts, their renewals
// and what is known of their loss.
package hold

import (
	"context"
	"log/slog"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/call"
	"github.com/mortiselock/lock/internal/schedule"
)

const never = schedule.Never

// Leases are the holds of one Locker.
type Leases struct {
	server    *call.Server
	batch     backend.BatchRenewer // nil where holds are renewed one by one
	expiries  *expiries
	renewers  call.Pool
	reporters call.Pool // of ends that nobody asked for
	losses    *losses   // nil when the backend notifies nobody

	dueRenewals []dueRenewal // guarded by the scheduler's mutex
	takenAlong  int          // of those, takeAlong has seen so many; guarded by it too
}

// NewLeases returns the holds of a Locker, which has none yet. It takes over the
// scheduler of the server.
func NewLeases(s *call.Server) *Leases {
	c := &Leases{
		server:    s,
		renewers:  call.Pool{Limit: 32, Urgent: true},
		reporters: call.Pool{Limit: 32},
	}
	c.expiries = &expiries{clock: s.Clock, armed: never, begin: s.Calls.Follow, after: c.afterExpiry}
	s.Sched.Before, s.Sched.Along = c.expiries.run, c.takeAlong
	c.batch, _ = backend.As[backend.BatchRenewer](s.Own)
	notifier, _ := backend.As[backend.LossNotifier](s.Own)
	if s.Counted {
		notifier, _ = s.Backend.(backend.LossNotifier)
	}
	if notifier != nil {
		c.losses = &losses{leases: map[backend.ID]*Lease{}, early: map[backend.ID]error{}}
		notifier.NotifyLoss(c.lossNoticed)
	}
	return c
}

// Admit schedules a new lease, unless the Locker is closing.
func (c *Leases) Admit(l *Lease) bool {
	c.server.Sched.Lock()
	defer c.server.Sched.Unlock()
	select {
	case <-c.server.Calls.Open.Done():
		l.span.Drop()
		return false
	default:
	}
	c.server.Sched.Set((*renewals)(l), l.state.renewal())
	c.expiries.add(l)
	return true
}

// ended does what follows when the context of a lease has ended. If it was lost, the
// server is told, and log and observer are; the caller has counted that as under way.
func (c *Leases) ended(l *Lease, cause error, lost bool) {
	c.Forget(l.hold.ID)
	if !lost {
		return
	}
	// Not before the context's end: the clean-up lets others have the key.
	l.giveBack()
	if !c.server.Observed.On() && !c.server.Log.Enabled(context.Background(), slog.LevelWarn) {
		c.server.Calls.Done()
		return
	}
	c.reporters.Run("", call.Patience, func() {
		defer c.server.Calls.Done()
		c.reportEnd(l, cause)
	})
}

// afterExpiry has the states of leases follow their terms, which are over and whose
// contexts have ended.
func (c *Leases) afterExpiry(ended []*Lease) {
	for _, l := range ended {
		l.step(func(h *machine, now backend.Instant) action { return h.tick(now, 0) })
		c.server.Calls.Done()
	}
}

// reportEnd tells log and observer about a hold that ended without a release.
func (c *Leases) reportEnd(l *Lease, cause error) {
	if cause == backend.ErrClosed {
		l.tellEnd(context.Background(), call.Released, cause)
		return
	}
	c.server.Log.Warn("lock lost", "key", l.hold.Key, "token", l.hold.Token, "cause", cause, "held", c.server.Clock.Now().Sub(l.since))
	l.tellEnd(context.Background(), call.Lost, cause)
}

// EndAll ends every lease with the cause backend.ErrClosed, and then schedules the releases.
func (c *Leases) EndAll() {
	c.server.Sched.Lock()
	leases := c.expiries.all()
	acts := make([]action, len(leases))
	causes := make([]error, len(leases))
	for i, l := range leases {
		acts[i] = l.apply(func(h *machine, _ backend.Instant) action { return h.close() })
		causes[i] = l.state.cause
	}
	c.server.Sched.Unlock()
	for i, l := range leases {
		l.end.because(causes[i])
	}
	for i, l := range leases {
		l.carryOut(acts[i], causes[i])
	}
}
