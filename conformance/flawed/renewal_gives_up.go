package flawed

import (
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z17 = Lock{
	ID: "Z17", Title: "renewal that ends with the first error",
	Summary: "After one error nothing renews the lease, though the server is back.",
	Seen:    "redisson/redisson#775, #2515 and #5698.",
	Instead: "Try again until the deadline.",
	File:    "renewal_gives_up.go", Over: Memory,
	Rule: "RenewTransient",
	On:   onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker { return watchdog{policy{l}, renewUntilError} }),
}

// renewUntilError leaves its loop with the first error.
//
//	A: acquires job for 10 s, renews every 2 s
//	A: renews -> i/o timeout; the goroutine returns
//	the server is back a second later; nobody asks it
//	A's record expires, 8 s after a hiccup of one
//
// Here the Locker still tells of the loss. In many libraries the goroutine that has
// returned would have been the one to tell. Caught by RenewTransient.
//
// Instead: only the end of the hold ends the loop.
func renewUntilError(lease lock.Lease, ttl time.Duration) lock.Lease {
	go func() {
		for rest(lease.Context(), ttl/5) {
			if err := renewal(lease, ttl); err != nil {
				return
			}
		}
	}()
	return lease
}
