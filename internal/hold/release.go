package hold

import (
	"context"
	"errors"
	"fmt"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/call"
)

// ErrReleased is the cause of a lease's context after its release.
var ErrReleased = errors.New("lock: released")

// End ends the hold: the context first, then send tells the server. It is called once at a
// time.
func (l *Lease) End(ctx context.Context, send func(context.Context) error) error {
	for {
		released, settled, err := l.beginRelease()
		if settled {
			return err
		}
		if released == nil {
			break
		}
		// Another Release is under way; its outcome decides about this one.
		select {
		case <-released:
		case <-ctx.Done():
			return fmt.Errorf("lock: releasing %q: another Release is still waiting for the server: %w: %w", l.hold.Key, backend.ErrOutcomeUnknown, ctx.Err())
		}
	}
	defer l.c.server.Calls.Done()
	err := l.endRelease(send(ctx))
	if err == nil {
		l.TellRelease(ctx)
		return nil
	}
	if lost := (*endedError)(nil); errors.As(err, &lost) {
		l.tellEnd(ctx, call.Lost, lost.cause)
	} else {
		l.tellEnd(ctx, call.Released, err)
	}
	return err
}

// beginRelease ends the hold on this side. It returns the end of another release
// to wait for, or settled and the final result when there is nothing to send, or
// nothing when the caller is the one to send and owes a Calls.Done.
func (l *Lease) beginRelease() (released <-chan struct{}, settled bool, err error) {
	s := l.c.server.Sched
	s.Lock()
	act := l.apply(func(h *machine, now backend.Instant) action { return h.release(now) })
	cause := l.state.cause
	switch l.state.phase {
	case phaseLost:
		settled, err = true, &endedError{key: l.hold.Key, cause: l.state.cause}
	case phaseSettled:
		settled, err = true, &endedError{key: l.hold.Key, cause: ErrReleased}
	case phaseHeld, phaseReleasing:
		switch {
		case l.releasing:
			if l.released == nil {
				l.released = make(chan struct{})
			}
			released = l.released
		case s.Stopped():
			settled, err = true, fmt.Errorf("%w: releasing %q was not confirmed before; the lease ends within its TTL: %w", backend.ErrOutcomeUnknown, l.hold.Key, backend.ErrClosed)
		default:
			l.c.server.Calls.Follow()
			l.releasing = true
		}
	}
	s.Unlock()
	l.carryOut(act, cause)
	return released, settled, err
}

// ReleasedTwice says that a clean-up is going to end the hold too, so that a release
// under way which finds no hold is no loss.
func (l *Lease) ReleasedTwice() {
	s := l.c.server.Sched
	s.Lock()
	defer s.Unlock()
	l.unsettled = true
}

// endRelease draws the conclusion from what the server said.
func (l *Lease) endRelease(err error) error {
	again, err := l.concludeRelease(err)
	// A renewal that was not confirmed may have lengthened the lease up to now.
	if again || l.late {
		l.giveBack()
	}
	return err
}

// giveBack ends the hold in the background, and what a request that may arrive late is
// granted.
func (l *Lease) giveBack() {
	c := l.c
	c.server.CleanUp(l.hold.Key, l.hold.TTL, func(error) bool { return l.late }, func(ctx context.Context) error {
		return c.server.Backend.Release(ctx, l.hold)
	})
}

// concludeRelease also reports whether the release has to be repeated.
func (l *Lease) concludeRelease(err error) (again bool, _ error) {
	s := l.c.server.Sched
	s.Lock()
	defer s.Unlock()
	l.releasing = false
	if l.released != nil {
		close(l.released)
		l.released = nil
	}
	repeated := l.unsettled
	switch {
	case err == nil:
		l.state.settle()
		return false, nil
	case errors.Is(err, backend.ErrNotHeld):
		l.state.settle()
		if repeated {
			// The first request, whose answer was lost, or a clean-up has done it.
			return false, nil
		}
		cause := err
		if !errors.Is(err, backend.ErrLost) {
			cause = backend.ErrTakenOver
			if l.c.server.Clock.Now() >= l.state.deadline {
				cause = backend.ErrExpired
			}
		}
		return false, &endedError{key: l.hold.Key, cause: cause}
	}
	l.unsettled = true
	return !repeated, fmt.Errorf("%w: releasing %q was not confirmed; it is repeated in the background, and the lease ends within its TTL: %w",
		backend.ErrOutcomeUnknown, l.hold.Key, err)
}
