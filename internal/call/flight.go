package call

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock/backend"
)

// Flight is a request for a grant whose caller may stop waiting for it. What it left on
// the server is cleaned up, unless it turns out that nothing was sent.
type Flight struct {
	landed  chan struct{} // closed when the backend has returned
	unsent  bool          // set before
	decided bool          // set before: the server has answered
}

// landing is how long a clean-up waits for a request that nobody waits for any more: a
// backend that has sent nothing yet returns when the context ends.
const landing = 10 * time.Millisecond

// NewFlight returns the Flight of a request that is about to be sent.
func NewFlight() *Flight { return &Flight{landed: make(chan struct{})} }

// Landed returns the Flight of a request for which the backend has returned the error.
func Landed(err error) *Flight {
	f := NewFlight()
	f.Land(err)
	return f
}

// Land notes what the backend has returned.
func (f *Flight) Land(err error) {
	f.unsent = errors.Is(err, backend.ErrNotSent)
	f.decided = err == nil || IsDecided(err)
	close(f.landed)
}

// neverLeft reports that nothing was sent, waiting a moment for the answer. A nil
// flight has left.
func (f *Flight) neverLeft(ctx context.Context) bool {
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
func (f *Flight) mayArrive() bool {
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
