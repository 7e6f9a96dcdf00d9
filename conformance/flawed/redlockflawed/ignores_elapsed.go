package redlockflawed

import (
	"context"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z20 = Lock{
	ID: "Z20", Title: "the time that the nodes took is not subtracted",
	Summary: "The first node grants the key to others before the deadline.",
	Seen:    "go-redsync/redsync#71 and #72.",
	Instead: "Count from before the first node is asked.",
	File:    "ignores_elapsed.go",
	Rule:    "DeadlineFromSend",
	On: onNodes{
		nodes: 3, change: func(t textbook) backend.Backend { return t },
		asLocker: func(l *lock.Client) lock.Locker { return ignoresElapsed{l} },
	},
}

// ignoresElapsed dates a lease from the end of the round.
type ignoresElapsed struct{ *lock.Client }

// Acquire implements lock.Locker.
func (l ignoresElapsed) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	start := time.Now()
	lease, err := l.Client.Acquire(ctx, key, opts...)
	return datedFromEnd(start, lease, err)
}

// TryAcquire implements lock.Locker.
func (l ignoresElapsed) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	start := time.Now()
	lease, err := l.Client.TryAcquire(ctx, key, opts...)
	return datedFromEnd(start, lease, err)
}

func datedFromEnd(start time.Time, lease lock.Lease, err error) (lock.Lease, error) {
	if err != nil {
		return nil, err
	}
	// The way of the last answer. The drift allowance is small beside it, and it is too short
	// to be taken for a server that is held up, at any TTL.
	until, _ := lease.Deadline()
	time.Sleep(7*time.Millisecond + time.Until(until)/30)
	return lateLease{lease, time.Since(start)}, nil
}

type lateLease struct {
	lock.Lease
	late time.Duration
}

// Deadline implements lock.Lease.
func (l lateLease) Deadline() (time.Time, bool) {
	d, ok := l.Lease.Deadline()
	return d.Add(l.late), ok
}
