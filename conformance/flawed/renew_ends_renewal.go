package flawed

import (
	"context"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z137 = Lock{
	ID: "Z137", Title: "a renewal by hand that is the last",
	Summary: "Whoever renews by hand once has to go on: nothing renews the lease by itself any more.",
	Seen:    "A timer that is stopped before the call of its own function, which is to set it again, and that another caller stops too.",
	Instead: "A renewal by hand moves the next automatic one, and ends none.",
	File:    "renew_ends_renewal.go", Over: Memory,
	Rule: "RenewKeeps",
	Also: []string{"EndedContexts", "HoldOutlivesAcquireCtx", "RenewTransient"},
	On: onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker {
		return watchdog{policy{l}, renewsUntilRenewed}
	}),
}

// renewsUntilRenewed stops the timer in Renew, and sets it in the function of the timer.
//
//	A: Acquire("import") -> granted, renewed every 5 s
//	A: Renew, before a step that may take long -> ok, and the timer is stopped
//	A works on; 15 s later the lease has run out
//
// Who renews by hand tests leases that are not renewed otherwise. Caught by RenewKeeps, one
// of whose leases is renewed by hand once.
//
// Instead: set the timer wherever it is stopped.
func renewsUntilRenewed(lease lock.Lease, ttl time.Duration) lock.Lease {
	timer, stop := context.WithCancel(lease.Context())
	go func() {
		for rest(timer, ttl/5) {
			_ = renewal(lease, ttl)
		}
	}()
	return stopsTimer{lease, stop}
}

type stopsTimer struct {
	lock.Lease
	stop context.CancelFunc
}

// Renew implements lock.Lease.
func (s stopsTimer) Renew(ctx context.Context) error {
	s.stop()
	return s.Lease.Renew(ctx)
}
