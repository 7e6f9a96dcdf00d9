package flawed

import (
	"context"
	"errors"
	"sync"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z119 = Lock{
	ID: "Z119", Title: "a Close that releases one lease after the other",
	Summary: "With many leases and a server that is not near, Close takes longer than a program has to end.",
	Seen:    "Loops over Unlock in functions that stop a service, of which a supervisor gives up on after ten seconds.",
	Instead: "Release all at the same time, or in one request.",
	File:    "close_one_by_one.go", Over: Memory,
	Rule: "CloseEndsHolds",
	Also: []string{"CallsAreBounded", "CloseTwice"},
	On: onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker {
		leases := &inTurn{leases: map[lock.Lease]context.CancelCauseFunc{}}
		return oneByOne{changed{policy{l}, leases.add}, leases}
	}),
}

// oneByOne releases in a loop.
//
//	A: holds 300 keys on a server 50 ms away
//	A: is asked to stop, and calls Close
//	ten seconds later A is killed, and 100 keys are held for the rest of their TTL
//
// Caught by CloseEndsHolds, which closes a Locker with many leases on a slow server.
type oneByOne struct {
	changed
	*inTurn
}

// inTurn is the leases of a Locker.
type inTurn struct {
	mu     sync.Mutex
	leases map[lock.Lease]context.CancelCauseFunc
	once   sync.Once
}

func (t *inTurn) add(lease lock.Lease, _ lock.Settings) lock.Lease {
	own, end := ownContext(lease, func(cause error) bool { return !errors.Is(cause, lock.ErrClosed) })
	t.mu.Lock()
	t.leases[lease] = end
	t.mu.Unlock()
	context.AfterFunc(lease.Context(), func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.leases, lease)
	})
	return endsItself{own, end}
}

// Close implements lock.Locker.
func (o oneByOne) Close() (err error) {
	o.once.Do(func() {
		var leases []lock.Lease
		o.mu.Lock()
		for lease, end := range o.leases {
			end(lock.ErrClosed)
			leases = append(leases, lease)
		}
		o.mu.Unlock()
		for _, lease := range leases {
			_ = lease.Release(context.Background())
		}
		err = o.policy.Close()
	})
	return err
}
