package wait

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/call"
	"github.com/mortiselock/lock/internal/hold"
)

// Lease is a hold, and what its release owes to those who wait.
type Lease struct {
	hold.Lease
	c *Waits

	// doubts is how many turns are left to others of whom only refusals told, and usual how
	// long those had the key. They and run are set before the caller gets the lease.
	doubts int
	usual  time.Duration
	told   int // how many had the last signal of the watch; zero where there was none
	run    run

	turn turn // that its release leaves to other clients; guarded by lanes.mu
}

// Release ends the hold.
func (l *Lease) Release(ctx context.Context) error { return l.End(ctx, l.sendRelease) }

// sendRelease tells the server, on a context that the caller's cancellation does not
// reach. A caller whose context ends during the call gets its answer at once; the request
// goes on.
func (l *Lease) sendRelease(ctx context.Context) error {
	c := l.c
	giveUp := ctx.Done()
	if ctx.Err() != nil {
		giveUp = nil
	}
	here := c.server.Calls.Here(ctx)
	detached, cancel := c.server.Calls.Detached(ctx, here && giveUp != nil)
	defer cancel()
	repeated := false
	if o := l.takeOffer(); o != nil {
		done, err := l.releaseTo(detached, o, giveUp, here)
		if done {
			return err
		}
		if here {
			err = stoppedIfUnknown(ctx, giveUp, err)
		}
		if err == call.ErrStopped {
			return fmt.Errorf("no answer yet: %w", ctx.Err())
		}
		repeated = !call.IsDecided(err)
	}
	start := c.server.Clock.Now()
	t := l.openTurn(start)
	defer l.closeTurn(t)
	for tries := 1; ; tries++ {
		var others int
		var err error
		if here {
			others, err = l.tellServer(detached)
			err = stoppedIfUnknown(ctx, giveUp, err)
		} else {
			others, err = call.Bounded(detached, c.server.Calls, giveUp, nil, l.tellServer)
		}
		if err == nil && c.queuer == nil {
			l.leaveTurn(t, others, start)
		}
		if err == call.ErrStopped {
			return fmt.Errorf("no answer yet: %w", ctx.Err())
		}
		if (repeated || tries > 1) && errors.Is(err, backend.ErrNotHeld) {
			// The first request, whose answer was lost, has done it.
			return nil
		}
		if err == nil || tries == 2 || call.IsKnown(err) || detached.Err() != nil {
			return err
		}
	}
}

// stoppedIfUnknown is what call.Bounded returns when its caller has given up, for a request on
// the goroutine of the caller.
func stoppedIfUnknown(ctx context.Context, giveUp <-chan struct{}, err error) error {
	if giveUp != nil && ctx.Err() != nil && err != nil && !call.IsKnown(err) {
		return call.ErrStopped
	}
	return err
}

// tellServer sends the release. It returns how many other clients were told of it, or less
// than zero where the server does not say.
func (l *Lease) tellServer(ctx context.Context) (others int, _ error) {
	c := l.c
	if c.teller != nil && !(c.server.Counted && l.Hold().Owner != "") {
		others, err := c.teller.ReleaseTelling(ctx, *l.Hold())
		if !errors.Is(err, backend.ErrUnsupported) {
			return others, err
		}
	}
	return -1, c.server.Backend.Release(ctx, *l.Hold())
}
