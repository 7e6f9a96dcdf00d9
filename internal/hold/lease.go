package hold

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/call"
)

// Lease is a hold, its context and its places among the
// renewals and the expiries.
type Lease struct {
	c     *Leases
	hold  backend.Hold
	since backend.Instant
	limit backend.Instant // end of the maximum hold, or never
	end   end
	auto  bool // it is renewed without being asked
	late  bool // a request may arrive after the end, and is then given back
	span  *call.Span

	failing atomic.Bool // the last renewal has failed

	// term is until when the hold lasts. It is over for everybody before the state
	// and the context follow.
	term   term
	expiry int32 // the place among the expiries, whose mutex guards it

	// The scheduler's mutex guards the rest.
	next      int32  // the place in the scheduler
	part      string // what served the key when that was asked last
	state     machine
	releasing bool          // a release is under way
	released  chan struct{} // closed when it has ended; nil when nobody waits for that
	unsettled bool          // a release was sent whose outcome is unknown, or whose answer nobody reads
}

// Terms are what the holder has asked for beside the hold.
type Terms struct {
	Renewed bool          // without being asked
	Longest time.Duration // to hold, or zero for no limit
	Label   string        // for those who look at the lease
}

// Begin begins the hold of a lease. The caller then has it admitted, and its grant told.
func (c *Leases) Begin(l *Lease, h backend.Hold, g backend.Grant, t Terms, now backend.Instant) {
	h.Token = g.Token
	l.c, l.hold, l.since, l.auto, l.late, l.part = c, h, now, t.Renewed, g.MayArrive, c.server.Partition(h.Key)
	l.state = newMachine(h.TTL, g.Validity, now, t.Renewed, t.Longest, rand.Float64())
	l.limit = l.state.limit
	l.term.begin(l.state.ends())
	l.span = c.server.Observed.Span(call.Event{What: call.Granted, Key: h.Key, Label: t.Label, Token: h.Token}, now)
}

// TellGrant tells the observer of a lease that its holder, who asked for it at an instant,
// is about to get.
func (l *Lease) TellGrant(ctx context.Context, asked backend.Instant) { l.span.Begin(ctx, asked) }

// TellRelease tells the observer that the server has confirmed the release.
func (l *Lease) TellRelease(ctx context.Context) { l.tellEnd(ctx, call.Released, nil) }

func (l *Lease) tellEnd(ctx context.Context, what call.What, err error) {
	l.span.End(ctx, l.span.Event(what, err))
}

// Number is the number of the lease among those of its Locker, or zero where there is no
// observer.
func (l *Lease) Number() uint64 { return l.span.Number() }

// Key is the key that is held.
func (l *Lease) Key() string { return l.hold.Key }

// Token is the fencing token.
func (l *Lease) Token() uint64 { return l.hold.Token }

// Context ends with the hold.
func (l *Lease) Context() context.Context { return (*leaseContext)(l) }

// Hold is the hold as the backend knows it. It does not change.
func (l *Lease) Hold() *backend.Hold { return &l.hold }

// Backend is the backend of the hold.
func (l *Lease) Backend() backend.Backend { return l.c.server.Backend }

// RenewsItself reports whether the lease is renewed without being asked.
func (l *Lease) RenewsItself() bool { return l.auto }

// Since is when the hold began.
func (l *Lease) Since() backend.Instant { return l.since }

// Until is when the hold ends or ended, if no further renewal is confirmed.
func (l *Lease) Until() backend.Instant {
	at, _ := l.term.read()
	return at
}

// Format prints what everybody may know, with every verb in the same way, and reads
// nothing that changes.
func (l *Lease) Format(s fmt.State, _ rune) {
	fmt.Fprintf(s, "lease of %q with the token %d", l.hold.Key, l.hold.Token)
}

// LogValue implements slog.LogValuer.
func (l *Lease) LogValue() slog.Value {
	return slog.GroupValue(slog.String("key", l.hold.Key), slog.Uint64("token", l.hold.Token))
}

// Deadline is until when the hold is certain without another renewal; of one that has ended
// it is not in the future.
func (l *Lease) Deadline() (time.Time, bool) {
	at, _ := l.term.read()
	clock := l.c.server.Clock
	for before, tries := clock.Now(), 1; ; tries++ {
		now := time.Now()
		after := clock.Now()
		// A goroutine that stood still between two readings would see the deadline move.
		if after.Sub(before) < time.Millisecond || tries == 10 {
			return now.Add(at.Sub(after)), true
		}
		before = after
	}
}

// renewals is a lease as an entry of the scheduler.
type renewals Lease

// Place implements schedule.Entry.
func (r *renewals) Place() *int32 { return &r.next }

// Due implements schedule.Entry.
func (r *renewals) Due(now backend.Instant) (backend.Instant, func()) {
	l := (*Lease)(r)
	if now >= l.state.ends() {
		return never, nil // expiries ends it
	}
	var todo func()
	if l.state.tick(now, rand.Float64())&actRenew != 0 {
		todo = l.c.renewSoon(l)
	}
	return l.state.renewal(), todo
}

// step applies an event to the hold under the mutex, and carries out what follows when
// that ends it.
func (l *Lease) step(event func(h *machine, now backend.Instant) action) {
	l.c.server.Sched.Lock()
	act := l.apply(event)
	cause := l.state.cause
	l.c.server.Sched.Unlock()
	l.carryOut(act, cause)
}

// apply applies an event to the hold and moves the lease in the schedule. The
// scheduler's mutex is held; the caller owes a carryOut. A hold whose term was over
// before the event is lost, whatever the event says.
func (l *Lease) apply(event func(h *machine, now backend.Instant) action) action {
	s := l.c.server.Sched
	if l.state.phase != phaseHeld {
		return event(&l.state, l.c.server.Clock.Now())
	}
	var act action
	for {
		at, over := l.term.read()
		if over {
			act = l.state.tick(max(at, l.c.server.Clock.Now()), 0)
			break
		}
		before, now := l.state, l.c.server.Clock.Now()
		act = event(&l.state, now)
		if ends := l.state.ends(); ends != never && l.term.move(at, ends) || ends == never && l.term.end(at, now) {
			break
		}
		l.state = before
	}
	s.Set((*renewals)(l), l.state.renewal())
	if l.state.phase != phaseHeld {
		l.c.expiries.remove(l)
	}
	if act&actCleanUp != 0 {
		l.c.server.Calls.Follow() // Close waits until the clean-up is scheduled, and then for itself
	}
	return act
}

// carryOut does what follows from the end of a hold, without the mutex.
func (l *Lease) carryOut(act action, cause error) {
	if act&actEnd == 0 {
		return
	}
	l.end.because(cause)
	l.c.ended(l, cause, act&actCleanUp != 0)
}

// expired is the cause of a hold whose term is over because it has passed.
func (l *Lease) expired() error {
	if at, _ := l.term.read(); at == l.limit {
		return backend.ErrMaxHold
	}
	return backend.ErrExpired
}

// expire ends a hold whose deadline or limit has passed. Where somebody else has
// ended it just now, the context may not have followed yet; and where a renewal has moved
// the deadline since the caller looked, nothing ends.
func (l *Lease) expire() {
	if at, over := l.term.read(); !over && l.c.server.Clock.Now() >= at && l.term.end(at, at) {
		l.end.because(l.expired())
		l.step(func(h *machine, now backend.Instant) action { return h.tick(now, 0) })
		return
	}
	l.c.server.Sched.Lock()
	ph, cause := l.state.phase, l.state.cause
	at, over := l.term.read()
	l.c.server.Sched.Unlock()
	switch {
	case ph != phaseHeld:
		l.end.because(cause)
	case over:
		l.end.because(l.expired())
	case l.c.server.Clock.Now() >= at:
		l.expire()
	}
}

// Renew extends the hold now.
func (l *Lease) Renew(ctx context.Context) error {
	start := l.c.server.Clock.Now()
	if err := l.ended(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if !l.c.server.Calls.Add() {
		return &endedError{key: l.hold.Key, cause: backend.ErrClosed}
	}
	defer l.c.server.Calls.Done()
	// Without an answer the wait ends with the hold, Close included.
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	v, err := call.Bounded(limited, l.c.server.Calls, l.Context().Done(), nil, func(ctx context.Context) (backend.Validity, error) {
		return l.c.server.Backend.Renew(ctx, l.hold)
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

// ended returns why the hold is over, matching backend.ErrNotHeld, or nil while it goes
// on.
func (l *Lease) ended() error {
	if l.Context().Err() == nil {
		return nil
	}
	return &endedError{key: l.hold.Key, cause: l.end.why()}
}

// endedError says that an operation came too late because the hold had ended. It
// matches backend.ErrNotHeld and its cause.
type endedError struct {
	key   string
	cause error
}

func (e *endedError) Error() string {
	return fmt.Sprintf("lock: %q is not held any more: %v", e.key, e.cause)
}
func (e *endedError) Is(target error) bool { return target == backend.ErrNotHeld }
func (e *endedError) Unwrap() error        { return e.cause }
