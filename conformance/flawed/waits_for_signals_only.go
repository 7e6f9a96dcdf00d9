package flawed

import (
	"context"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z36 = Lock{
	ID: "Z36", Title: "waiting for signals, and for nothing else",
	Summary: "A lost signal, or an expiry without one, leaves the waiter asleep.",
	Seen:    "redisson/redisson#491, #4064, #5761 and #6766; apache/curator#1046.",
	Instead: "Ask now and then too, and when the holder's lease can have ended.",
	File:    "waits_for_signals_only.go", Over: Memory,
	Rule: "WaiterPolls",
	Also: []string{"EndlessContexts", "UnavailableIsTold", "ProgressUnderFaults", "LateGrant", "CrashFrees", "WakesAtAnyMoment"},
	On: onPolicy(func(l *lock.Client, b backend.Backend) lock.Locker {
		watcher, ok := b.(backend.Watcher)
		if !ok {
			return newAsking(l, nowAndThen) // without signals it has to poll
		}
		return newAsking(l, signalsOf(watcher))
	}),
}

// signalsOf subscribes before the first request, so that no release can slip in
// between, and then sleeps until a signal comes.
//
//	B: SUBSCRIBE job:released
//	B: SET job b NX PX 10000   -> nil, sleeps
//	the subscription's connection breaks, and is made again
//	A: DEL job, PUBLISH job:released -> 0 receivers
//	B: sleeps, with the key free, until somebody else acquires and releases it
//
// A holder that dies publishes nothing at all: its record just expires. Caught by
// WaiterPolls, which loses the signals on their way. (In WaiterWakes they arrive.)
//
// Instead: beside the signal, a timer.
func signalsOf(watcher backend.Watcher) func(context.Context, string) func() {
	return func(ctx context.Context, key string) (pause func()) {
		signals, err := watcher.Watch(ctx, key)
		if err != nil {
			return nowAndThen(ctx, key)
		}
		return func() {
			select {
			case <-signals: // or never
			case <-ctx.Done():
			}
		}
	}
}
