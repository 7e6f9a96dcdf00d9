package flawed

import (
	"context"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z37 = Lock{
	ID: "Z37", Title: "waiting in a busy loop",
	Summary: "Each waiter asks as fast as it can.",
	Seen:    "Loops: for !tryLock() {}; redis/rueidis#602, hashicorp/consul#9469.",
	Instead: "Pauses that grow and differ at random; signals where there are any.",
	File:    "busy_loop.go", Over: Memory,
	Rule: "WaitIsCalm",
	Also: []string{"NoHerd"}, // every waiter asks, and the longer a turn lasts the more often
	On:   onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker { return newAsking(l, hardly) }),
}

// hardly waits for a tenth of a millisecond, so that its own machine has something
// else to do, too, whatever the last answer was.
//
//	A: holds job for a minute
//	B: SET job b NX PX 10000   -> nil, 200,000 times
//	a hundred like B: the server does nothing else; A's renewal comes too late
//	the server restarts: all of them connect again, as fast as they can
//
// Nothing is wrong with the answers, so tests of the lock pass. Caught by WaitIsCalm,
// which counts the requests of a waiter.
//
// Instead: a pause that grows and varies, and one for errors of the server, too.
func hardly(ctx context.Context, _ string) (pause func()) {
	return func() { rest(ctx, 100*time.Microsecond) }
}
