package flawed

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mortiselock/lock"
)

var z88 = Lock{
	ID: "Z88", Title: "a shutdown that frees the keys under their holders",
	Summary: "Close gives everything back before it tells the holders.",
	Seen:    "Shutdowns that delete the keys in a loop, and end what hangs on them last.",
	Instead: "End all contexts, then release.",
	File:    "close_frees_first.go", Over: Memory,
	Rule: "ContextEndsFirst",
	On: asLocker(func(l *lock.Client) lock.Locker {
		return &closesFirst{policy: policy{l}, open: map[*int]context.CancelCauseFunc{}}
	}),
}

// closesFirst ends the contexts of its leases at the end of Close.
//
//	A: SIGTERM; Close: DEL job-1, DEL job-2, ... DEL job-500
//	B: SET job-1 b NX PX 10000 -> OK, B works
//	A: its worker for job-1 works too, until the last key is deleted
//
// It happens with each deployment, and only to those who hold many keys. Caught by
// ContextEndsFirst.
//
// Instead: what is local first.
type closesFirst struct {
	policy
	mu   sync.Mutex
	open map[*int]context.CancelCauseFunc
}

// Acquire implements lock.Locker.
func (l *closesFirst) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return l.watched(l.policy.Acquire(ctx, key, opts...))
}

// TryAcquire implements lock.Locker.
func (l *closesFirst) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return l.watched(l.policy.TryAcquire(ctx, key, opts...))
}

func (l *closesFirst) watched(lease lock.Lease, err error) (lock.Lease, error) {
	if err != nil {
		return nil, err
	}
	owned, end := ownContext(lease, func(cause error) bool { return !errors.Is(cause, lock.ErrClosed) })
	l.mu.Lock()
	defer l.mu.Unlock()
	id := new(int)
	l.open[id] = end
	context.AfterFunc(owned.ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.open, id)
	})
	return endsWithRelease{owned, end}, nil
}

// endsWithRelease is a lease whose context its release ends first.
type endsWithRelease struct {
	withContext
	end context.CancelCauseFunc
}

// Release implements lock.Lease.
func (l endsWithRelease) Release(ctx context.Context) error {
	if l.Lease.Context().Err() == nil {
		l.end(lock.ErrReleased)
	}
	return l.Lease.Release(ctx)
}

// Close implements lock.Locker.
func (l *closesFirst) Close() error {
	err := l.policy.Close()
	time.Sleep(4 * dawdling) // with many keys
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, end := range l.open {
		end(lock.ErrClosed)
	}
	return err
}
