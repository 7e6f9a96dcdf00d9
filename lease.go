package lock

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/call"
	"github.com/mortiselock/lock/internal/schedule"
)

// lease is the Lease of this package: a hold, its context and its places among the
// renewals and the expiries.
type lease struct {
	c     *client
	hold  *backend.Hold // not in place, so that printing what has a lease in it stops here
	since backend.Instant
	limit backend.Instant // end of the maximum hold, or never
	ctx   leaseContext
	end   context.CancelCauseFunc
	auto  bool // it is renewed without being asked
	late  bool // a request may arrive after the end, and is then given back
	// doubts is how many turns are left to others of whom only refusals told. It is set
	// before the caller gets the lease.
	doubts int
	run    run // the same goes for this

	// term is until when the hold lasts. It is over for everybody before the state
	// and the context follow.
	term   term
	expiry int32 // the place among the expiries, whose mutex guards it

	// The scheduler's mutex guards the rest.
	next      int32  // the place in the scheduler
	part      string // what served the key when that was asked last
	state     hold
	releasing chan struct{} // closed when the release under way has ended; nil when there is none
	unsettled bool          // a release was sent whose outcome is unknown, or whose answer nobody reads
}

// newLease begins the hold.
func (c *client) newLease(h backend.Hold, g backend.Grant, s Settings, now backend.Instant) *lease {
	h.Token = g.Token
	l := &lease{c: c, hold: &h, since: now, auto: !s.NoRenewal, late: g.MayArrive, part: c.server.Partition(h.Key)}
	ctx, end := context.WithCancelCause(context.Background())
	l.ctx, l.end = leaseContext{ctx, l}, end
	l.state = newHold(h.TTL, g.Validity, now, !s.NoRenewal, s.MaxHold, rand.Float64())
	l.limit = l.state.limit
	l.term.begin(l.state.ends())
	return l
}

func (l *lease) Key() string              { return l.hold.Key }
func (l *lease) Token() uint64            { return l.hold.Token }
func (l *lease) Context() context.Context { return l.ctx }

// Format prints what everybody may know, with every verb in the same way, and reads
// nothing that changes.
func (l *lease) Format(s fmt.State, _ rune) {
	fmt.Fprintf(s, "lease of %q with the token %d", l.hold.Key, l.hold.Token)
}

// LogValue implements slog.LogValuer.
func (l *lease) LogValue() slog.Value {
	return slog.GroupValue(slog.String("key", l.hold.Key), slog.Uint64("token", l.hold.Token))
}

func (l *lease) Deadline() (time.Time, bool) {
	at, _ := l.term.read()
	return time.Now().Add(at.Sub(l.c.server.Clock.Now())), true
}

// place and due make a lease an entry of the scheduler, for its renewals.
func (l *lease) Place() *int32 { return &l.next }

func (l *lease) Due(now backend.Instant) (backend.Instant, func()) {
	if now >= l.state.ends() {
		return schedule.Never, nil // expiries ends it
	}
	var todo func()
	if l.state.tick(now, rand.Float64())&actRenew != 0 {
		todo = l.c.renewSoon(l)
	}
	return l.state.renewal(), todo
}

// step applies an event to the hold under the mutex, and carries out what follows when
// that ends it.
func (l *lease) step(event func(h *hold, now backend.Instant) action) {
	l.c.server.Sched.Lock()
	act := l.apply(event)
	cause := l.state.cause
	l.c.server.Sched.Unlock()
	l.carryOut(act, cause)
}

// apply applies an event to the hold and moves the lease in the schedule. The
// scheduler's mutex is held; the caller owes a carryOut. A hold whose term was over
// before the event is lost, whatever the event says.
func (l *lease) apply(event func(h *hold, now backend.Instant) action) action {
	s := l.c.server.Sched
	if l.state.phase != phaseHeld {
		return event(&l.state, l.c.server.Clock.Now())
	}
	var act action
	for {
		at, over := l.term.read()
		state := l.state
		if over {
			act = state.tick(max(at, l.c.server.Clock.Now()), 0)
			l.state = state
			break
		}
		act = event(&state, l.c.server.Clock.Now())
		if ends := state.ends(); ends != schedule.Never && l.term.move(at, ends) || ends == schedule.Never && l.term.end(at) {
			l.state = state
			break
		}
	}
	s.Set(l, l.state.renewal())
	if l.state.phase != phaseHeld {
		l.c.expiries.remove(l)
	}
	if act&actCleanUp != 0 {
		l.c.server.Calls.Follow() // Close waits until the clean-up is scheduled, and then for itself
	}
	return act
}

// carryOut does what follows from the end of a hold, without the mutex.
func (l *lease) carryOut(act action, cause error) {
	if act&actEnd == 0 {
		return
	}
	l.end(cause)
	l.c.ended(l, cause, act&actCleanUp != 0)
}

// expired is the cause of a hold whose term is over because it has passed.
func (l *lease) expired() error {
	if at, _ := l.term.read(); at == l.limit {
		return ErrMaxHold
	}
	return ErrExpired
}

// expire ends a hold whose deadline or limit has passed. Where somebody else has
// ended it just now, the context may not have followed yet; and where a renewal has moved
// the deadline since the caller looked, nothing ends.
func (l *lease) expire() {
	if at, over := l.term.read(); !over && l.c.server.Clock.Now() >= at && l.term.end(at) {
		l.end(l.expired())
		l.step(func(h *hold, now backend.Instant) action { return h.tick(now, 0) })
		return
	}
	l.c.server.Sched.Lock()
	ph, cause := l.state.phase, l.state.cause
	l.c.server.Sched.Unlock()
	switch at, over := l.term.read(); {
	case ph != phaseHeld:
		l.end(cause)
	case over:
		l.end(l.expired())
	case l.c.server.Clock.Now() >= at:
		l.expire()
	}
}

// Renew extends the hold now.
func (l *lease) Renew(ctx context.Context) error {
	start := l.c.server.Clock.Now()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := l.ended(); err != nil {
		return err
	}
	if !l.c.server.Calls.Add() {
		return &endedError{key: l.hold.Key, cause: ErrClosed}
	}
	defer l.c.server.Calls.Done()
	// Without an answer the wait ends with the hold, Close included.
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	v, err := call.Bounded(limited, l.c.server.Calls, l.ctx.Done(), nil, func(ctx context.Context) (backend.Validity, error) {
		return l.c.server.Backend.Renew(ctx, *l.hold)
	})
	l.c.renewalEnded(ctx, l, v, err, start, rand.Float64())
	if err == nil {
		return l.ended()
	}
	if ended := l.ended(); ended != nil {
		return ended
	}
	return fmt.Errorf("lock: renewing %q: %w", l.hold.Key, call.UnknownUnlessKnown(err))
}

// ended returns why the hold is over, matching ErrNotHeld, or nil while it goes
// on.
func (l *lease) ended() error {
	if l.ctx.Err() == nil {
		return nil
	}
	cause := context.Cause(l.ctx)
	return &endedError{key: l.hold.Key, cause: cause}
}

// endedError says that an operation came too late because the hold had ended. It
// matches ErrNotHeld and its cause.
type endedError struct {
	key   string
	cause error
}

func (e *endedError) Error() string {
	return fmt.Sprintf("lock: %q is not held any more: %v", e.key, e.cause)
}
func (e *endedError) Is(target error) bool { return target == ErrNotHeld }
func (e *endedError) Unwrap() error        { return e.cause }
