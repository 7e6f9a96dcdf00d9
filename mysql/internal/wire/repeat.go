package wire

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// Repeats is how often a step is taken again that the server has rolled back
	// because of others. It is also how often a row is looked at again that others
	// keep changing.
	Repeats = 20
	// FreshConnections is how often a connection that turns out to be dead before
	// anything was sent is replaced by another one.
	FreshConnections = 3
)

// Jitter lets those who are in each other's way go on at different times.
func Jitter(ctx context.Context, try int) error {
	most := time.Duration(min(try, 10)) * 2 * time.Millisecond
	timer := time.NewTimer(time.Duration(rand.Int64N(int64(most))))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// EndingBefore is a context for the wait for a connection. It ends a little before ctx, at
// least the given time, so that there is time to say that nothing was sent: who waits for the
// answer does not wait longer than ctx, and would have to take the outcome for unknown.
func EndingBefore(ctx context.Context, least time.Duration) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, deadline.Add(-max(least, min(time.Until(deadline)/5, 200*time.Millisecond))))
}
