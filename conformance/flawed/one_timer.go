package flawed

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z160 = Lock{
	ID: "Z160", Title: "a timer that is not set again for a shorter lease",
	Summary: "The renewals of a lease wait until that of an earlier, longer one is due.",
	Seen:    "Loops that sleep until the next entry of their list is due, and are told of no new one.",
	Instead: "Whoever adds what is due before the rest wakes the loop.",
	File:    "one_timer.go", Over: Memory,
	Rule: "RenewKeeps",
	On: onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker {
		return watchdog{policy{l}, new(oneTimer).keep}
	}),
}

// oneTimer renews all leases of its Locker by one timer, which fires for the next that it knew of
// when it was set.
//
//	A: Acquire("import", WithTTL(time.Minute)): the timer fires in 12 s
//	A: Acquire("report", WithTTL(5*time.Second)): one more in the list
//	B, after 5 s: Acquire("report") -> granted. A renews it after 12 s, in vain
//
// With one TTL for all leases it never happens: a later one is due later. Caught by RenewKeeps.
type oneTimer struct {
	mu    sync.Mutex
	list  []*timed
	timer *time.Timer // nil while the list is empty
}

type timed struct {
	lock.Lease
	ttl time.Duration
	due time.Time
}

func (o *oneTimer) keep(lease lock.Lease, ttl time.Duration) lock.Lease {
	o.mu.Lock()
	defer o.mu.Unlock()
	entry := &timed{lease, ttl, time.Now().Add(ttl / 5)}
	o.list = append(o.list, entry)
	if o.timer == nil {
		o.timer = time.AfterFunc(min(dawdling/5, ttl/5), o.look) // soon, for the first few at a time
	}
	context.AfterFunc(lease.Context(), func() { o.drop(entry) })
	return lease
}

func (o *oneTimer) drop(entry *timed) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = slices.DeleteFunc(o.list, func(e *timed) bool { return e == entry })
	if len(o.list) == 0 {
		o.timer.Stop()
		o.timer = nil
	}
}

func (o *oneTimer) look() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.list) == 0 {
		return // it fired as the last one was dropped
	}
	now := time.Now()
	next := o.list[0]
	for _, entry := range o.list {
		if !entry.due.After(now) {
			entry.due = now.Add(entry.ttl / 5)
			go func() { _ = renewal(entry.Lease, entry.ttl) }()
		}
		if entry.due.Before(next.due) {
			next = entry
		}
	}
	o.timer.Reset(next.due.Sub(now))
}
