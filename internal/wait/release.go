package wait

import (
	"context"
	"errors"
	"fmt"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/call"
	"github.com/mortiselock/lock/internal/hold"
)

// Lease is a hold, and what its release owes to those who wait.
type Lease struct {
	hold.Lease
	c *Waits

	// doubts is how many turns are left to others of whom only refusals told. It and run are
	// set before the caller gets the lease.
	doubts int
	run    run
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
	send := func(ctx context.Context) (int, error) { return -1, c.server.Backend.Release(ctx, *l.Hold()) }
	if c.teller != nil && !(c.server.Counted && l.Hold().Owner != "") {
		send = func(ctx context.Context) (int, error) { return c.teller.ReleaseTelling(ctx, *l.Hold()) }
	}
	start := c.server.Clock.Now()
	t := l.openTurn()
	defer l.closeTurn(t)
	for tries := 1; ; tries++ {
		var others int
		var err error
		if here {
			others, err = send(detached)
			err = stoppedIfUnknown(ctx, giveUp, err)
		} else {
			others, err = call.Bounded(detached, c.server.Calls, giveUp, nil, send)
		}
		if err == nil && c.queuer == nil {
			l.leaveTurn(t, others, c.server.Clock.Now().Sub(start))
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
