package lock

import (
	"context"
	"errors"
	"fmt"

	"github.com/mortiselock/lock/backend"
)

// Release implements Lease.
func (l *lease) Release(ctx context.Context) error {
	err := l.release(ctx)
	c := l.c
	if c.observer != nil {
		c.observe(ctx, Event{
			Kind: EventRelease, Key: l.hold.Key, Token: l.hold.Token,
			Duration: c.clock.Now().Sub(l.since), Err: err,
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
	defer l.c.calls.done()
	err := l.sendRelease(ctx)
	return l.endRelease(err)
}

// beginRelease ends the hold on this side. It returns the end of another release
// to wait for, or settled and the final result when there is nothing to send, or
// nothing when the caller is the one to send and owes a calls.done.
func (l *lease) beginRelease() (turn <-chan struct{}, settled bool, err error) {
	s := l.c.sched
	s.mu.Lock()
	act := l.state.release(s.clock.Now())
	s.set(l, l.state.wake())
	f := l.c.act(l, act)
	switch l.state.phase {
	case phaseLost:
		settled, err = true, &endedError{key: l.hold.Key, cause: l.state.cause}
	case phaseSettled:
		settled, err = true, &endedError{key: l.hold.Key, cause: ErrReleased}
	case phaseHeld, phaseReleasing:
		switch {
		case l.releasing != nil:
			turn = l.releasing
		case s.stopped:
			settled, err = true, fmt.Errorf("%w: releasing %q was not confirmed before; the lease ends within its TTL: %w", ErrOutcomeUnknown, l.hold.Key, ErrClosed)
		default:
			l.c.calls.follow()
			l.releasing = make(chan struct{})
		}
	}
	s.mu.Unlock()
	if f != nil {
		f()
	}
	return turn, settled, err
}

// sendRelease tells the server, on a context that the caller's cancellation does
// not reach. A caller whose context ends during the call gets its answer at once;
// the request goes on.
func (l *lease) sendRelease(ctx context.Context) error {
	c := l.c
	limited, cancel := c.ending.within(closeLimit)
	defer cancel()
	var detached context.Context = openContext{limited, ctx}
	giveUp := ctx.Done()
	if ctx.Err() != nil {
		giveUp = nil
	}
	repeated := false
	if o := l.takeOffer(); o != nil {
		done, err := l.releaseTo(detached, o, giveUp, direct(ctx))
		if done {
			return err
		}
		if err == errStopped {
			return fmt.Errorf("no answer yet: %w", ctx.Err())
		}
		repeated = !isAny(err, known) || errors.Is(err, ErrOutcomeUnknown)
	}
	send := func(ctx context.Context) (struct{}, error) { return struct{}{}, c.ops.Release(ctx, l.hold) }
	for tries := 1; ; tries++ {
		var err error
		if direct(ctx) {
			_, err = send(detached)
		} else {
			_, err = bounded(detached, c, giveUp, nil, send)
		}
		if err == errStopped {
			return fmt.Errorf("no answer yet: %w", ctx.Err())
		}
		if (repeated || tries > 1) && errors.Is(err, ErrNotHeld) {
			// The first request, whose answer was lost, has done it.
			return nil
		}
		if err == nil || tries == 2 || isAny(err, known) || detached.Err() != nil {
			return err
		}
	}
}

// releasedTwice says that a clean-up is going to end the hold too, so that a release
// under way which finds no hold is no loss.
func (l *lease) releasedTwice() {
	s := l.c.sched
	s.mu.Lock()
	defer s.mu.Unlock()
	l.unsettled = true
}

// endRelease draws the conclusion from what the server said.
func (l *lease) endRelease(err error) error {
	s, c := l.c.sched, l.c
	s.mu.Lock()
	defer s.mu.Unlock()
	close(l.releasing)
	l.releasing = nil
	repeated := l.unsettled
	switch {
	case err == nil:
		l.state.settle()
		return nil
	case errors.Is(err, ErrNotHeld):
		l.state.settle()
		if repeated {
			// The first request, whose answer was lost, or a clean-up has done it.
			return nil
		}
		cause := err
		if !errors.Is(err, ErrLost) {
			cause = ErrTakenOver
			if s.clock.Now() >= l.state.deadline {
				cause = ErrExpired
			}
		}
		return &endedError{key: l.hold.Key, cause: cause}
	}
	if !repeated {
		l.unsettled = true
		// A renewal that was not confirmed may have lengthened the lease up to now.
		c.cleanUpLocked(l.hold.Key, l.hold.TTL, func(ctx context.Context) error { return c.ops.Release(ctx, l.hold) })
	}
	return fmt.Errorf("%w: releasing %q was not confirmed; it is repeated in the background, and the lease ends within its TTL: %w",
		backend.ErrOutcomeUnknown, l.hold.Key, err)
}
