package redlockflawed

import (
	"context"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z20 = Lock{
	ID: "Z20", Title: "the time that the nodes took is not subtracted",
	Summary: "The lease is taken to begin when the last node has answered. The first has begun to count long before, and grants the key to others while the holder still trusts its lease.",
	Seen:    "go-redsync/redsync#71 and #72.",
	Instead: "Read the clock before the first node is asked, and count from there.",
	File:    "ignores_elapsed.go", Nodes: 3,
	Rule:     "DeadlineFromSend",
	on:       func(t textbook) backend.Backend { return t },
	asLocker: func(l lock.Locker) lock.Locker { return ignoresElapsed{l} },
}

// ignoresElapsed dates a lease from the end of the round.
type ignoresElapsed struct{ lock.Locker }

// Guarantees implements lock.Guaranteer.
func (l ignoresElapsed) Guarantees() backend.Guarantees {
	g, _ := lock.GuaranteesOf(l.Locker)
	return g
}

// Acquire implements lock.Locker.
func (l ignoresElapsed) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	start := time.Now()
	lease, err := l.Locker.Acquire(ctx, key, opts...)
	return datedFromEnd(start, lease, err)
}

// TryAcquire implements lock.Locker.
func (l ignoresElapsed) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	start := time.Now()
	lease, err := l.Locker.TryAcquire(ctx, key, opts...)
	return datedFromEnd(start, lease, err)
}

func datedFromEnd(start time.Time, lease lock.Lease, err error) (lock.Lease, error) {
	if err != nil {
		return nil, err
	}
	time.Sleep(50 * time.Millisecond) // the way of the last answer
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
