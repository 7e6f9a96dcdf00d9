package lock

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock/backend"
)

// flight is a request for a grant whose caller may stop waiting for it. What it left on
// the server is cleaned up, unless it turns out that nothing was sent.
type flight struct {
	landed  chan struct{} // closed when the backend has returned
	unsent  bool          // set before
	decided bool          // set before: the server has answered
}

// landing is how long a clean-up waits for a request that nobody waits for any more: a
// backend that has sent nothing yet returns when the context ends.
const landing = 10 * time.Millisecond

func newFlight() *flight { return &flight{landed: make(chan struct{})} }

// land notes what the backend has returned.
func (f *flight) land(err error) {
	f.unsent = errors.Is(err, backend.ErrNotSent)
	f.decided = err == nil || isAny(err, known) && !errors.Is(err, ErrOutcomeUnknown)
	close(f.landed)
}

// neverLeft reports that nothing was sent, waiting a moment for the answer. A nil
// flight has left.
func (f *flight) neverLeft(ctx context.Context) bool {
	if f == nil {
		return false
	}
	patience := time.NewTimer(landing)
	defer patience.Stop()
	select {
	case <-f.landed:
		return f.unsent
	case <-patience.C:
	case <-ctx.Done():
	}
	return false
}

// mayArrive reports whether the request can still reach the server. A nil flight can.
func (f *flight) mayArrive() bool {
	if f == nil {
		return true
	}
	select {
	case <-f.landed:
		return !f.unsent && !f.decided
	default:
		return true
	}
}

// doubt notes that something that was sent may have been granted.
func (a *acquisition) doubt() { a.unknown, a.flight = true, nil }

// doubtOf notes that the doubt, which there was not before, is about this request only.
func (a *acquisition) doubtOf(f *flight, before bool) {
	if a.unknown && !before {
		a.flight = f
	}
}
