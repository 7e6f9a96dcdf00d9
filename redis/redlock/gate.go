package redlock

import (
	"context"
	"fmt"

	"github.com/mortiselock/lock/backend"
)

// maxRounds is how many requests of one kind a Locker has on the way to its nodes at a
// time: enough to keep every node busy, and so few that each is sent with the next
// batch. A node's time for an answer runs from then on, and so does the lease. More
// callers wait here for their turn, however many they are; a node that does not answer
// does not keep them waiting, since a request ends when the others have decided it, and
// fails at once while a majority is known to be silent.
const maxRounds = 256

// gates are the turns of the callers. Renewals and releases don't wait behind
// acquisitions.
type gates struct{ tries, renewals, others chan struct{} }

func newGates() gates {
	return gates{make(chan struct{}, maxRounds), make(chan struct{}, maxRounds), make(chan struct{}, maxRounds)}
}

// enter waits for a turn; the caller gives it back with leave.
func enter(ctx context.Context, gate chan struct{}, key string) error {
	err := ctx.Err()
	if err == nil {
		select {
		case gate <- struct{}{}:
			return nil
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	return fmt.Errorf("redlock: key %q: %w: %w", key, backend.ErrNotSent, err)
}

func leave(gate chan struct{}) { <-gate }
