package flawed

import (
	"context"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z85 = Lock{
	ID: "Z85", Title: "ask first, subscribe afterwards",
	Summary: "A release between the refusal and the subscription is heard by nobody.",
	Seen:    "redisson/redisson#491; qdrant/qdrant#8847.",
	Instead: "Subscribe, then ask; or ask once more.",
	File:    "watch_after_asking.go", Over: Memory,
	Rule: "WakesAtAnyMoment",
	Also: []string{"Progress", "GaveUpWakesNext"},
	On: onPolicy(func(l *lock.Client, b backend.Backend) lock.Locker {
		watcher, ok := b.(backend.Watcher)
		if !ok {
			return newAsking(l, nowAndThen)
		}
		return newAsking(l, watchLate(watcher))
	}),
}

// nextLook is when those who wait for a signal ask all the same.
const nextLook = 3 * time.Second

// watchLate subscribes when it has been refused.
//
//	B: SET job b NX PX 10000   -> nil
//	A: DEL job, PUBLISH job:released -> 0 receivers
//	B: SUBSCRIBE job:released, sleeps, with the key free
//
// The gap is a millisecond, so that it takes a busy key to meet it. A look every few
// seconds turns it into a wait that is long now and then, which nobody explains. Caught
// by WakesAtAnyMoment, whose releases come while waits begin.
//
// Instead: ask again once the subscription stands.
func watchLate(watcher backend.Watcher) func(context.Context, string) func() {
	return func(ctx context.Context, key string) (pause func()) {
		return func() {
			time.Sleep(time.Millisecond) // the way to the server
			watching, stop := context.WithCancel(ctx)
			defer stop()
			signals, err := watcher.Watch(watching, key)
			if err != nil {
				nowAndThen(ctx, key)()
				return
			}
			look := time.NewTimer(nextLook)
			defer look.Stop()
			select {
			case <-signals:
			case <-look.C:
			case <-ctx.Done():
			}
		}
	}
}
