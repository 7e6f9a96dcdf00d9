package flawed

import (
	"context"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z37Step = Lock{
	ID: "Z37", Title: "waiting in step",
	Summary: "Waiters that meet once stay together.",
	Seen:    "A fixed or doubling sleep; hashicorp/consul#7523, medusajs/medusa#15143.",
	Instead: "Something random in every pause.",
	File:    "fixed_pause.go", Over: Memory,
	Rule: "NoLockstep",
	// An attempt that meets one who takes the key or gives up costs a whole pause.
	Also: []string{"GaveUpWakesNext", "WakesAtAnyMoment"},
	On:   onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker { return newAsking(l, fiveTimesASecond) }),
}

// fiveTimesASecond is a pause as it stands in many a loop.
//
//	the server restarts; a thousand waiters are refused at the same moment
//	after 200 ms: 1000 requests within a millisecond; the last are answered late
//	after 400 ms: the same, and so on; the holder's renewal stands in the same line
//	and between, the server has nothing to do
//
// One waiter alone does nothing wrong, and its requests are few. Caught by NoLockstep,
// which refuses several clients at the same moment and looks at when they come again.
//
// Instead: pauses of 150 to 250 ms, drawn anew each time.
func fiveTimesASecond(ctx context.Context, _ string) (pause func()) {
	return func() { rest(ctx, 200*time.Millisecond) }
}
