package flawed

import (
	"sync/atomic"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z101 = Lock{
	ID: "Z101", Title: "a second close that does not wait",
	Summary: "The second caller returns while keys are still being given back.",
	Seen:    "Close methods that begin with `if !closed.CompareAndSwap(false, true) { return nil }`, called by a signal handler and by a deferred statement.",
	Instead: "Let the second wait until the first is through.",
	File:    "close_returns_at_once.go", Over: Memory,
	Rule: "CloseTwice",
	On:   onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker { return &closesOnce{policy: policy{l}} }),
}

// closesOnce is closed by whoever comes first.
//
//	signal handler: Close() -> is releasing 200 keys, which takes a second
//	main:           Close() -> nil at once, and main returns
//	                the process ends in the middle of the releases; most keys stay locked for a TTL
//
// Caught by CloseTwice, whose second Close comes while the server has not yet answered to
// a release.
//
// Instead: a channel that the first Close closes at its end.
type closesOnce struct {
	policy
	closed atomic.Bool
}

// Close implements lock.Locker.
func (c *closesOnce) Close() error {
	if !c.closed.CompareAndSwap(false, true) {
		return nil
	}
	return c.policy.Close()
}
