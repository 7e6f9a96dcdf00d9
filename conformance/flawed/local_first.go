package flawed

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z92 = Lock{
	ID: "Z92", Title: "a process that serves its own waiters first",
	Summary: "While its own waiters last, no other process gets the lock.",
	Seen:    "A mutex of the process around the lock; lukas-krecan/ShedLock#570.",
	Instead: "After a few turns leave the lock to others for a moment.",
	File:    "local_first.go", Over: Memory,
	Rule: "Progress",
	Also: []string{"LeavesATurn", "ProgressUnderFaults", "Exclusive", "WaitIsCalm", "WaitOutlastsTTL", "WakesAtAnyMoment"},
	On: onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker {
		free := &freed{keys: map[string]*told{}}
		return localFirst{newAsking(l, free.wait), free}
	}),
}

// localFirst tells the next one in its own process at once, and others find out by asking.
//
//	A: four goroutines want job; the first releases, the second asks at once
//	B: asks ever more rarely, and finds job taken each time
//
// It is fast, and fair inside a process, which is what is measured. B waits for as long
// as A is busy. Caught by Progress, whose clients are all busy.
//
// Instead: let others have their turn.
type localFirst struct {
	*asking
	free *freed
}

// Acquire implements lock.Locker.
func (l localFirst) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return l.telling(l.asking.Acquire(ctx, key, opts...))
}

// TryAcquire implements lock.Locker.
func (l localFirst) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return l.telling(l.asking.TryAcquire(ctx, key, opts...))
}

func (l localFirst) telling(lease lock.Lease, err error) (lock.Lease, error) {
	if err != nil {
		return nil, err
	}
	return tellsFree{lease, l.free}, nil
}

// tellsFree is a lease whose release is told in its process.
type tellsFree struct {
	lock.Lease
	free *freed
}

// Release implements lock.Lease.
func (l tellsFree) Release(ctx context.Context) error {
	defer l.free.tell(l.Key())
	return l.Lease.Release(ctx)
}

// freed tells of releases in this process.
type freed struct {
	mu   sync.Mutex
	keys map[string]*told
}

// told is of a key that somebody in this process waits for.
type told struct {
	free    chan struct{}
	waiters int // guarded by the mutex of all
}

func (f *freed) tell(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if told := f.keys[key]; told != nil {
		select {
		case told.free <- struct{}{}:
		default:
		}
	}
}

// join returns what tells of the key until ctx ends.
func (f *freed) join(ctx context.Context, key string) *told {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.keys[key] == nil {
		f.keys[key] = &told{free: make(chan struct{}, 1)}
	}
	f.keys[key].waiters++
	context.AfterFunc(ctx, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.keys[key].waiters--; f.keys[key].waiters == 0 {
			delete(f.keys, key)
		}
	})
	return f.keys[key]
}

// wait waits for a release in this process, or for a while, which doubles each time.
func (f *freed) wait(ctx context.Context, key string) (pause func()) {
	free, while := f.join(ctx, key).free, 150*time.Millisecond
	return func() {
		t := time.NewTimer(while + rand.N(while/2))
		defer t.Stop()
		while = min(2*while, 2*time.Second)
		select {
		case <-free:
		case <-t.C:
		case <-ctx.Done():
		}
	}
}
