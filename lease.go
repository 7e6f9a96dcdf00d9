package lock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
)

// lease is the Lease of this package: a hold, its context and its place in the
// scheduler.
type lease struct {
	c     *client
	hold  backend.Hold
	since backend.Instant
	ctx   leaseContext
	end   context.CancelCauseFunc
	auto  bool // it is renewed without being asked

	// until is the deadline once more, for looks at the clock without a mutex.
	until atomic.Int64

	// The scheduler's mutex guards the rest.
	at        slot
	state     hold
	releasing chan struct{} // closed when the release under way has ended; nil when there is none
	unsettled bool          // a release was sent whose outcome is unknown, or whose answer nobody reads
}

// newLease begins the hold and schedules it.
func (c *client) newLease(h backend.Hold, g backend.Grant, s Settings, now backend.Instant) *lease {
	h.Token = g.Token
	l := &lease{c: c, hold: h, since: now, auto: !s.NoRenewal}
	ctx, end := context.WithCancelCause(context.Background())
	l.ctx, l.end = leaseContext{ctx, l}, end
	l.state = newHold(h.TTL, g.Validity, now, !s.NoRenewal, s.MaxHold, rand.Float64())
	l.until.Store(int64(min(l.state.deadline, l.state.limit)))
	return l
}

// leaseContext ends with the hold. Its Err looks at the clock, so that after a
// pause of the process the first look tells the truth, before any timer had a
// chance to run.
type leaseContext struct {
	context.Context
	l *lease
}

func (c leaseContext) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	if int64(c.l.c.clock.Now()) < c.l.until.Load() {
		return nil
	}
	c.l.expire()
	return c.Context.Err()
}

func (l *lease) Key() string              { return l.hold.Key }
func (l *lease) Token() uint64            { return l.hold.Token }
func (l *lease) Context() context.Context { return l.ctx }

func (l *lease) Deadline() (time.Time, bool) {
	return time.Now().Add(backend.Instant(l.until.Load()).Sub(l.c.clock.Now())), true
}

// slot and due make a lease an entry of the scheduler.
func (l *lease) slot() *slot { return &l.at }

func (l *lease) due(now backend.Instant) func() {
	act := l.state.tick(now, rand.Float64())
	l.at.wake = l.state.wake()
	return l.c.act(l, act)
}

// step applies an event to the hold under the mutex, moves the lease in the
// schedule, and carries out what the event asks for.
func (l *lease) step(event func(h *hold, now backend.Instant) action) {
	s := l.c.sched
	s.mu.Lock()
	act := event(&l.state, s.clock.Now())
	l.until.Store(int64(min(l.state.deadline, l.state.limit)))
	s.set(l, l.state.wake())
	f := l.c.act(l, act)
	s.mu.Unlock()
	if f != nil {
		f()
	}
}

// expire ends a hold whose deadline or limit has passed. Where somebody else has
// ended it just now, the context may not have followed yet.
func (l *lease) expire() {
	l.step(func(h *hold, now backend.Instant) action { return h.tick(now, rand.Float64()) })
	l.c.sched.mu.Lock()
	ph, cause := l.state.phase, l.state.cause
	l.c.sched.mu.Unlock()
	if ph != phaseHeld {
		l.end(cause)
	}
}

// Renew extends the hold now.
func (l *lease) Renew(ctx context.Context) error {
	start := l.c.clock.Now()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := l.ended(); err != nil {
		return err
	}
	if !l.c.calls.add() {
		return &endedError{key: l.hold.Key, cause: ErrClosed}
	}
	defer l.c.calls.done()
	// Without an answer the wait ends with the hold, Close included.
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	v, err := bounded(limited, l.c, l.ctx.Done(), nil, func(ctx context.Context) (backend.Validity, error) {
		return l.c.ops.Renew(ctx, l.hold)
	})
	l.c.renewalEnded(ctx, l, v, err, start)
	if err == nil {
		return l.ended()
	}
	if ended := l.ended(); ended != nil {
		return ended
	}
	return fmt.Errorf("lock: renewing %q: %w", l.hold.Key, unknownUnlessKnown(err))
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
