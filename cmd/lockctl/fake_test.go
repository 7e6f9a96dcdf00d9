package main

import (
	"context"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// fakeLocker answers as the test says.
type fakeLocker struct {
	acquire    func(ctx context.Context, key string) (lock.Lease, error)
	guarantees backend.Guarantees

	mu     sync.Mutex
	closed bool
}

func (f *fakeLocker) Acquire(ctx context.Context, key string, _ ...lock.Option) (lock.Lease, error) {
	return f.acquire(ctx, key)
}

func (f *fakeLocker) TryAcquire(ctx context.Context, key string, _ ...lock.Option) (lock.Lease, error) {
	return f.acquire(ctx, key)
}

func (f *fakeLocker) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}

func (f *fakeLocker) isClosed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}

func (f *fakeLocker) Guarantees() backend.Guarantees { return f.guarantees }

// fakeLease is a hold whose deadline and end the test decides.
type fakeLease struct {
	ctx context.Context
	end context.CancelCauseFunc

	mu         sync.Mutex
	deadline   time.Time
	releaseErr error
	released   bool
}

func newFakeLease(left time.Duration) *fakeLease {
	l := &fakeLease{deadline: time.Now().Add(left)}
	l.ctx, l.end = context.WithCancelCause(context.Background())
	return l
}

func (l *fakeLease) Key() string                 { return "fake" }
func (l *fakeLease) Token() uint64               { return 42 }
func (l *fakeLease) Context() context.Context    { return l.ctx }
func (l *fakeLease) Renew(context.Context) error { return lock.ErrUnsupported }

func (l *fakeLease) Deadline() (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline, !l.deadline.IsZero()
}

func (l *fakeLease) move(deadline time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deadline = deadline
}

func (l *fakeLease) Release(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.released = true
	return l.releaseErr
}

func (l *fakeLease) isReleased() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.released
}
