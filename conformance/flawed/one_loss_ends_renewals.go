package flawed

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z122 = Lock{
	ID: "Z122", Title: "renewals in one group of goroutines",
	Summary: "When one lease is lost, all others of the process are renewed by nobody.",
	Seen:    "errgroup.WithContext around the renewals: the first error cancels the context of all.",
	Instead: "The error of one lease ends that lease.",
	File:    "one_loss_ends_renewals.go", Over: Memory,
	Rule: "LostOnRemoval",
	Also: []string{"LostByDeadline", "RenewKeeps", "ManyLeases"},
	On: onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker {
		all, cancel := context.WithCancel(context.Background())
		return watchdog{policy{l}, (&group{all, cancel}).guard}
	}),
}

// group is an errgroup.
type group struct {
	ctx    context.Context
	cancel context.CancelFunc
}

// guard gives the lease to the group.
//
//	A: holds a, b and c, each with a goroutine of the group
//	an operator frees a: its goroutine returns the error, and the group ends
//	b and c run out one TTL later
//
// Caught by LostOnRemoval, which looks at another lease of the Locker.
func (g *group) guard(lease lock.Lease, ttl time.Duration) lock.Lease {
	go func() {
		for rest(lease.Context(), ttl/5) && g.ctx.Err() == nil {
			if err := renewal(lease, ttl); errors.Is(err, lock.ErrTakenOver) {
				g.cancel()
			}
		}
	}()
	return lease
}
