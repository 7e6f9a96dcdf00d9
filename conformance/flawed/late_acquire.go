package flawed

import (
	"context"
	"time"

	"github.com/mortiselock/lock"
)

var z11 = Lock{
	ID: "Z11", Title: "a grant is dated from its answer, however late",
	Summary: "The time that an acquisition took is not subtracted: it may have taken the whole TTL, and counts as a lock.",
	Seen:    "mike-marcacci/node-redlock#296 and #369, go-redsync/redsync#71 and #72.",
	Instead: "Read the clock before the request, count from there, and give back a grant that arrives too late to be of use.",
	File:    "late_acquire.go", Over: Memory,
	Rule:     "DeadlineFromSend",
	Also:     append([]string{"ReentrantAfterLoss", "ReentrantExtends"}, takeovers...),
	asLocker: func(l lock.Locker) lock.Locker { return lateAcquire{policy{l}} },
}

// lateAcquire takes a lease to begin when the answer arrives.
//
//	A: SET job a NX PX 1000   -> the server says OK, and the answer is under way
//	A's record expires
//	B: SET job b NX PX 1000   -> OK, B works
//	A: receives its OK, and works for a second from now
//
// With a fast network the error is a millisecond, and tests don't see it. Caught
// by DeadlineFromSend, which knows when the request was made; ServerOutlivesD sees
// the next holder come too soon.
//
// Instead: the server may have begun the lease as soon as the request was sent, so
// that is when it begins. What has little time left when it arrives is released
// and not returned.
type lateAcquire struct{ policy }

// Acquire implements lock.Locker.
func (l lateAcquire) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	lease, err := l.policy.Acquire(ctx, key, opts...)
	return answered(lease, err)
}

// TryAcquire implements lock.Locker.
func (l lateAcquire) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	lease, err := l.policy.TryAcquire(ctx, key, opts...)
	return answered(lease, err)
}

func answered(lease lock.Lease, err error) (lock.Lease, error) {
	if err != nil {
		return nil, err
	}
	decided := time.Now()
	dawdle() // the way of the answer
	return lateLease{lease, time.Since(decided)}, nil
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
