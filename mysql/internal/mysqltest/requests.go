package mysqltest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// TTL is that of holds which nobody renews, and which no test waits for: longer than
// any step of a test takes.
const TTL = 5 * time.Minute

// Request is one for the key, by an acquisition of its own.
func Request(key string) backend.Request {
	return backend.Request{Key: key, ID: backend.NewID(), TTL: TTL}
}

// OwnedRequest is Request with an owner and a TTL.
func OwnedRequest(key, owner string, ttl time.Duration) backend.Request {
	return backend.Request{Key: key, ID: backend.NewID(), Owner: owner, TTL: ttl}
}

// Ended waits for the end of a lease and returns its cause, which tells whether it was
// noticed or the time was over.
func Ended(t testing.TB, l lock.Lease) error {
	t.Helper()
	select {
	case <-l.Context().Done():
	case <-time.After(Patience):
		require.Fail(t, "the lease has not ended")
	}
	return context.Cause(l.Context())
}

// Renewals is an observer and the renewals that it has been told of.
func Renewals() (lock.Observer, <-chan lock.Event) {
	events := make(chan lock.Event, 1000)
	return func(_ context.Context, e lock.Event) {
		if e.Kind == lock.EventRenewed || e.Kind == lock.EventRenewalFailed {
			events <- e
		}
	}, events
}
