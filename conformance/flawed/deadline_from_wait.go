package flawed

import (
	"cmp"
	"context"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z82 = Lock{
	ID: "Z82", Title: "a deadline that counts from the beginning of the wait",
	Summary: "After a long wait the lease is over at once.",
	Seen:    "mike-marcacci/node-redlock#296 and #299 (the start is taken before the first attempt).",
	Instead: "Read the clock before each request.",
	File:    "deadline_from_wait.go", Over: Memory,
	Rule: "GrantIsUsable",
	Also: []string{"AcquireKeepsTTL", "LostByDeadline"},
	On:   asLocker(func(l *lock.Client) lock.Locker { return datedFromWait{policy{l}} }),
}

// datedFromWait reads the clock when Acquire is called.
//
//	A, 12:00:00: Acquire("job", WithTTL(10*time.Second)) begins to wait
//	A, 12:00:30: SET job a NX PX 10000 -> OK; the deadline is 12:00:10
//	A gives up at once, or extends what "has expired" and fails
//
// It is the caution of counting from before the request, at the wrong request. Nobody
// is let in too early, and nobody who had to wait can work. Caught by GrantIsUsable,
// which waits for longer than the TTL.
//
// Instead: as lock does, from the request that was granted.
type datedFromWait struct{ policy }

// Acquire implements lock.Locker.
func (l datedFromWait) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	start := time.Now()
	lease, err := l.policy.Acquire(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	set, _ := lock.ResolveOptions(opts...)
	first, _ := lease.Deadline()
	return earlyDated{lease, first, start.Add(backend.ValidFor(cmp.Or(set.TTL, TTL)))}, nil
}

// earlyDated is a lease with another deadline until it is renewed.
type earlyDated struct {
	lock.Lease
	first, early time.Time
}

// Deadline implements lock.Lease.
func (l earlyDated) Deadline() (time.Time, bool) {
	d, ok := l.Lease.Deadline()
	if d.Sub(l.first) < dawdling && l.early.Before(d) { // two readings of one deadline differ by a little
		d = l.early
	}
	return d, ok
}
