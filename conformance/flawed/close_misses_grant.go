package flawed

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mortiselock/lock"
)

var z118 = Lock{
	ID: "Z118", Title: "a grant that Close has not seen",
	Summary: "A lease that is granted as Close runs comes into the list after Close has read it, and is never told.",
	Seen:    "Lists of leases that are filled when the call is about to return.",
	Instead: "Look under the mutex of the list whether it is closed.",
	File:    "close_misses_grant.go", Over: Memory,
	Rule: "CloseTwice",
	On: asLocker(func(l *lock.Client) lock.Locker {
		list := &list{ends: map[*context.CancelCauseFunc]bool{}}
		return listed{changed{policy{l}, list.add}, list}
	}),
}

// listed has a list of its leases.
//
//	A: TryAcquire("job") -> the server grants it
//	A, in another goroutine: Close() -> ends all leases of the list, and releases the key
//	A: puts the lease into the list, and returns it; its context is alive
//	B: TryAcquire("job") -> granted, while A works
//
// Caught by CloseTwice, beside whose Close a caller takes one key after the other.
//
// Instead: if closed { release; return ErrClosed }.
type listed struct {
	changed
	*list
}

// list is what ends the leases of a Locker.
type list struct {
	mu   sync.Mutex
	ends map[*context.CancelCauseFunc]bool
}

// add puts a lease into the list, until it has ended.
func (l *list) add(lease lock.Lease, _ lock.Settings) lock.Lease {
	time.Sleep(time.Millisecond) // what else there is to do for a lease
	own, end := ownContext(lease, func(cause error) bool { return !errors.Is(cause, lock.ErrClosed) })
	l.mu.Lock()
	l.ends[&end] = true
	l.mu.Unlock()
	context.AfterFunc(lease.Context(), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.ends, &end)
	})
	return endsItself{own, end}
}

// Close implements lock.Locker.
func (l listed) Close() error {
	l.mu.Lock()
	for end := range l.ends {
		(*end)(lock.ErrClosed)
	}
	l.mu.Unlock()
	return l.policy.Close()
}
