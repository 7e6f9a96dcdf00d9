package lock

import (
	"context"
	"errors"
	"fmt"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/call"
)

// Release implements Lease.
func (l *lease) Release(ctx context.Context) error {
	err := l.release(ctx)
	c := l.c
	if c.observer != nil {
		c.observe(ctx, Event{
			Kind: EventRelease, Key: l.hold.Key, Token: l.hold.Token,
			Duration: c.server.Clock.Now().Sub(l.since), Err: err,
		})
	}
	return err
}

func (l *lease) release(ctx context.Context) error {
	for {
		turn, settled, err := l.beginRelease()
		if settled {
			return err
		}
		if turn == nil {
			break
		}
		// Another Release is under way; its outcome decides about this one.
		select {
		case <-turn:
		case <-ctx.Done():
			return fmt.Errorf("lock: releasing %q: another Release is still waiting for the server: %w: %w", l.hold.Key, ErrOutcomeUnknown, ctx.Err())
		}
	}
	defer l.c.server.Calls.Done()
	err := l.sendRelease(ctx)
	return l.endRelease(err)
}

// beginRelease ends the hold on this side. It returns the end of another release
// to wait for, or settled and the final result when there is nothing to send, or
// nothing when the caller is the one to send and owes a Calls.Done.
func (l *lease) beginRelease() (turn <-chan struct{}, settled bool, err error) {
	s := l.c.server.Sched
	s.Lock()
	act := l.apply(func(h *hold, now backend.Instant) action { return h.release(now) })
	cause := l.state.cause
	switch l.state.phase {
	case phaseLost:
		settled, err = true, &endedError{key: l.hold.Key, cause: l.state.cause}
	case phaseSettled:
		settled, err = true, &endedError{key: l.hold.Key, cause: ErrReleased}
	case phaseHeld, phaseReleasing:
		switch {
		case l.releasing != nil:
			turn = l.releasing
		case s.Stopped():
			settled, err = true, fmt.Errorf("%w: releasing %q was not confirmed before; the lease ends within its TTL: %w", ErrOutcomeUnknown, l.hold.Key, ErrClosed)
		default:
			l.c.server.Calls.Follow()
			l.releasing = make(chan struct{})
		}
	}
	s.Unlock()
	l.carryOut(act, cause)
	return turn, settled, err
}

// sendRelease tells the server, on a context that the caller's cancellation does
// not reach. A caller whose context ends during the call gets its answer at once;
// the request goes on.
func (l *lease) sendRelease(ctx context.Context) error {
	c := l.c
	detached, cancel := c.server.Calls.Detached(ctx)
	defer cancel()
	giveUp := ctx.Done()
	if ctx.Err() != nil {
		giveUp = nil
	}
	repeated := false
	if o := l.takeOffer(); o != nil {
		done, err := l.releaseTo(detached, o, giveUp, call.Direct(ctx))
		if done {
			return err
		}
		if err == call.ErrStopped {
			return fmt.Errorf("no answer yet: %w", ctx.Err())
		}
		repeated = !call.IsDecided(err)
	}
	send := func(ctx context.Context) (int, error) { return -1, c.server.Backend.Release(ctx, *l.hold) }
	if c.teller != nil && !(c.counter != nil && l.hold.Owner != "") {
		send = func(ctx context.Context) (int, error) { return c.teller.ReleaseTelling(ctx, *l.hold) }
	}
	start := c.server.Clock.Now()
	t := l.openTurn()
	defer l.closeTurn(t)
	for tries := 1; ; tries++ {
		var others int
		var err error
		if call.Direct(ctx) {
			others, err = send(detached)
		} else {
			others, err = call.Bounded(detached, c.server.Calls, giveUp, nil, send)
		}
		if err == nil && c.queuer == nil {
			l.leaveTurn(t, others, c.server.Clock.Now().Sub(start))
		}
		if err == call.ErrStopped {
			return fmt.Errorf("no answer yet: %w", ctx.Err())
		}
		if (repeated || tries > 1) && errors.Is(err, ErrNotHeld) {
			// The first request, whose answer was lost, has done it.
			return nil
		}
		if err == nil || tries == 2 || call.IsKnown(err) || detached.Err() != nil {
			return err
		}
	}
}

// releasedTwice says that a clean-up is going to end the hold too, so that a release
// under way which finds no hold is no loss.
func (l *lease) releasedTwice() {
	s := l.c.server.Sched
	s.Lock()
	defer s.Unlock()
	l.unsettled = true
}

// endRelease draws the conclusion from what the server said.
func (l *lease) endRelease(err error) error {
	again, err := l.concludeRelease(err)
	// A renewal that was not confirmed may have lengthened the lease up to now.
	if again || l.late {
		l.giveBack()
	}
	return err
}

// giveBack ends the hold in the background, and what a request that may arrive late is
// granted.
func (l *lease) giveBack() {
	c := l.c
	c.server.CleanUp(l.hold.Key, l.hold.TTL, func(error) bool { return l.late }, func(ctx context.Context) error {
		return c.server.Backend.Release(ctx, *l.hold)
	})
}

// concludeRelease also reports whether the release has to be repeated.
func (l *lease) concludeRelease(err error) (again bool, _ error) {
	s := l.c.server.Sched
	s.Lock()
	defer s.Unlock()
	close(l.releasing)
	l.releasing = nil
	repeated := l.unsettled
	switch {
	case err == nil:
		l.state.settle()
		return false, nil
	case errors.Is(err, ErrNotHeld):
		l.state.settle()
		if repeated {
			// The first request, whose answer was lost, or a clean-up has done it.
			return false, nil
		}
		cause := err
		if !errors.Is(err, ErrLost) {
			cause = ErrTakenOver
			if l.c.server.Clock.Now() >= l.state.deadline {
				cause = ErrExpired
			}
		}
		return false, &endedError{key: l.hold.Key, cause: cause}
	}
	l.unsettled = true
	return !repeated, fmt.Errorf("%w: releasing %q was not confirmed; it is repeated in the background, and the lease ends within its TTL: %w",
		backend.ErrOutcomeUnknown, l.hold.Key, err)
}
