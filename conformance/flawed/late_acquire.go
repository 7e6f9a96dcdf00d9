package flawed

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
)

var z11 = Lock{
	ID: "Z11", Title: "an acquisition that took longer than the TTL counts",
	Summary: "The grant arrives when its time is over, and is handed to the caller as a lock.",
	Seen:    "mike-marcacci/node-redlock#296 and #369, go-redsync/redsync#71 and #72.",
	Instead: "Count the TTL from before the request was sent, and give back a grant that arrives too late to be of use.",
	File:    "late_acquire.go", Over: Memory,
	Rule:     "GrantIsUsable",
	Also:     append([]string{"DeadlineFromSend", "LostByDeadline", "RenewByHand", "RenewNeverResurrects", "ReentrantExtends", "ReentrantAfterLoss", "TokenStable"}, takeovers...),
	asLocker: func(l lock.Locker) lock.Locker { return &lateAcquire{policy: policy{l}} },
}

// lateAcquire returns whatever was granted, however long it took. It reaches its
// server over a bad line: now and then an answer takes longer than the TTL.
//
//	A: SET job a NX PX 1000   -> the server says OK, and the answer is under way
//	A's record expires
//	B: SET job b NX PX 1000   -> OK, B works
//	A: receives its OK, and works too
//
// Caught by GrantIsUsable, which looks how much of a lease is left when it is
// handed out.
//
// Instead: read the clock before the request, and when the answer comes subtract.
// What arrives with little time left is released and not returned.
type lateAcquire struct {
	policy
	calls atomic.Int64
}

// Of every lateEvery answers, one is late by lateBy.
const (
	lateEvery = 8
	lateBy    = TTL + TTL/5
)

// Acquire implements lock.Locker.
func (l *lateAcquire) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	lease, err := l.policy.Acquire(ctx, key, opts...)
	l.badLine(err)
	return lease, err // without a look at what is left of it
}

// TryAcquire implements lock.Locker.
func (l *lateAcquire) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	lease, err := l.policy.TryAcquire(ctx, key, opts...)
	l.badLine(err)
	return lease, err
}

func (l *lateAcquire) badLine(err error) {
	if err == nil && l.calls.Add(1)%lateEvery == 0 {
		time.Sleep(lateBy)
	}
}
