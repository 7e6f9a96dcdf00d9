package flawed

import (
	"context"
	"fmt"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z15 = Lock{
	ID: "Z15", Title: "one failed renewal is a loss",
	Summary: "A request lost on the network ends work that still holds the key.",
	Seen:    "hashicorp/consul#830 and #1162, cirello-io/pglock#41, tox-dev/filelock#661.",
	Instead: "Only the deadline, or the server's word, is a loss.",
	File:    "error_is_loss.go", Over: Memory,
	Rule: "RenewTransient",
	Also: []string{"LostWhenCutOff"},
	On:   onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker { return watchdog{policy{l}, giveUpOnError} }),
}

// giveUpOnError takes every error of a renewal for the end of the hold.
//
//	A: acquires job for 10 s, renews every 2 s
//	A: renews -> connection reset by peer: "lock lost", A rolls back an hour of work
//	A's record lasts for another 8 s, in which four more renewals could have been sent
//
// It is on the safe side, and makes each restart of a proxy an incident for all
// holders at once. Caught by RenewTransient, which fails renewals for less than the
// time to the deadline.
//
// Instead: an error says nothing about the hold. The deadline does.
func giveUpOnError(lease lock.Lease, ttl time.Duration) lock.Lease {
	ctx, lost := context.WithCancelCause(lease.Context())
	go func() {
		for rest(ctx, ttl/5) {
			if err := lease.Renew(ctx); err != nil {
				lost(fmt.Errorf("%w: %w", lock.ErrLost, err))
				return
			}
		}
	}()
	return withContext{lease, ctx}
}
