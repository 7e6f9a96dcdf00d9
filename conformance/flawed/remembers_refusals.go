package flawed

import (
	"context"
	"sync"
	"time"

	"github.com/mortiselock/lock"
)

var z74 = Lock{
	ID: "Z74", Title: "a list of all refusals",
	Summary: "Each refusal adds an entry that is never removed.",
	Seen:    "Statistics, caches and lists that are emptied on Close or never.",
	Instead: "Count, or keep the last few.",
	File:    "remembers_refusals.go", Over: Memory,
	Rule: "NothingKept",
	On:   asLocker(func(l *lock.Client) lock.Locker { return &rememberingRefusals{policy: policy{l}} }),
}

// rememberingRefusals keeps who was refused, for a page of statistics.
//
//	a job asks for its lock every 100 ms on 50 machines, and one gets it
//	each of the others: 864,000 entries a day
//
// No goroutine is left, and after Close nothing is left at all. Caught by NothingKept, which
// asks the garbage collector while the Locker is open.
//
// Instead: a counter.
type rememberingRefusals struct {
	policy
	mu  sync.Mutex
	all []refusal
}

type refusal struct {
	key  string
	when time.Time
}

// TryAcquire implements lock.Locker.
func (r *rememberingRefusals) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	lease, err := r.policy.TryAcquire(ctx, key, opts...)
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all = append(r.all, refusal{key, time.Now()})
	}
	return lease, err
}
