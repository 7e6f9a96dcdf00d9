package flawed

import (
	"sync"
	"time"

	"github.com/mortiselock/lock"
)

var z138 = Lock{
	ID: "Z138", Title: "a deadline that outlives its hold",
	Summary: "Who asks how long it may go on reads a time that was true before the release.",
	Seen:    "redsync's Until, which an Unlock leaves alone; this project's own Deadline, once.",
	Instead: "What ends the hold ends its deadline.",
	File:    "deadline_outlives_hold.go", Over: Memory,
	Rule: "DeadlineEnds",
	Also: []string{"CloseEndsHolds", "LossEndsUse", "LostOnRemoval"},
	On: asLocker(func(l *lock.Client) lock.Locker {
		return changed{policy{l}, func(lease lock.Lease, _ lock.Settings) lock.Lease {
			r := &remembering{Lease: lease}
			_, _ = r.Deadline()
			return r
		}}
	}),
}

// remembering returns the last deadline that it knew, as a field of the lease does.
//
//	A: a worker looks at the clock: time.Until(deadline) is 12 s, enough for one more row
//	A: another goroutine releases the lease
//	B: Acquire("import") -> granted
//	A: the worker looks again: 9 s, enough for one more row
//
// Caught by DeadlineEnds.
type remembering struct {
	lock.Lease

	mu   sync.Mutex
	last time.Time
}

// Deadline implements lock.Lease.
func (r *remembering) Deadline() (time.Time, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, known := r.Lease.Deadline(); known && at.After(r.last) {
		r.last = at
	}
	return r.last, true
}
