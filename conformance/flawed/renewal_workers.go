package flawed

import (
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z70 = Lock{
	ID: "Z70", Title: "ten workers renew, each one lease to its end",
	Summary: "The eleventh lease of a process is renewed by nobody.",
	Seen:    "Pools of a fixed size whose tasks are loops.",
	Instead: "One schedule for all leases.",
	File:    "renewal_workers.go", Over: Memory,
	Rule: "ManyLeases",
	On: onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker {
		return watchdog{policy{l}, workers(make(chan struct{}, 10)).guard}
	}),
}

// workers are the places of a pool.
type workers chan struct{}

// guard gives the lease to the pool.
//
//	leases 1 to 10: a worker each, which renews every 2 s until the release
//	lease 11: in the queue of the pool
//	lease 11 runs out after 10 s; a worker becomes free after an hour
//
// No test with a few leases shows it, nor does a service with little to do. Caught by
// ManyLeases.
//
// Instead: what renews a lease sleeps in no worker. A timer for the next renewal that is
// due is enough for thousands.
func (w workers) guard(lease lock.Lease, ttl time.Duration) lock.Lease {
	go func() {
		select {
		case w <- struct{}{}:
			defer func() { <-w }()
		case <-lease.Context().Done():
			return
		}
		for rest(lease.Context(), ttl/5) {
			_ = renewal(lease, ttl)
		}
	}()
	return lease
}
