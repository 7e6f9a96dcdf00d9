package flawed

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/mortiselock/lock"
)

var z46 = Lock{
	ID: "Z46", Title: "re-entry for the whole process",
	Summary: "Any request in the holder's process gets the key too.",
	Seen:    "Entries counted by key, or by a thread number that a pool reuses.",
	Instead: "Only an explicit owner enters again.",
	File:    "reentrant_by_process.go", Over: Memory,
	Rule: "ReentrantExplicit",
	Also: slices.Concat(manyInOneClient, []string{
		"LostByDeadline", "LossEndsUse", "ReleaseTwice",
		"ExpiryIsPerHold", "TokenInGrantOrder", "ReentrantCount", "ReentrantOwnLeases", "ReentrantLimit", "ReentrantModel",
		"ReentrantOverWaiters", "ReentrantAfterLoss", "CancelBeforeSend", "RenewKeeps", "DeadlineEnds",
	}),
	On: asLocker(func(l *lock.Client) lock.Locker { return &byProcess{policy: policy{l}, entered: map[string]*entries{}} }),
}

// byProcess counts how often its process has entered a key, and asks the server for
// the first entry only.
//
//	A, request 1: acquires job          -> SET job a NX PX 10000, OK; works
//	A, request 2: acquires job          -> it is ours: the count is 2; works, too
//	A, request 1: releases job          -> the count is 1
//	A, request 2: releases job          -> the count is 0, DEL job
//
// Meant for a function that calls another which locks the same key; there is no
// such thing as the current thread in a program with goroutines. Caught by
// ReentrantExplicit, which enters without an owner, and with another.
//
// Instead: an owner that the caller names.
type byProcess struct {
	policy
	mu      sync.Mutex
	entered map[string]*entries
}

type entries struct {
	lock.Lease
	n int
}

// enter counts one more entry, if the process holds the key.
func (l *byProcess) enter(key string) lock.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entered[key]
	if e == nil || e.Context().Err() != nil {
		return nil
	}
	e.n++
	return &entry{Lease: e, l: l, e: e}
}

func (l *byProcess) first(lease lock.Lease, err error) (lock.Lease, error) {
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e := &entries{lease, 1}
	l.entered[lease.Key()] = e
	return &entry{Lease: e, l: l, e: e}, nil
}

// Acquire implements lock.Locker.
func (l *byProcess) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	if again := l.enter(key); again != nil {
		return again, nil
	}
	return l.first(l.policy.Acquire(ctx, key, opts...))
}

// TryAcquire implements lock.Locker.
func (l *byProcess) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	if again := l.enter(key); again != nil {
		return again, nil
	}
	return l.first(l.policy.TryAcquire(ctx, key, opts...))
}

// entry is one of several leases on a key that the process holds.
type entry struct {
	lock.Lease
	l    *byProcess
	e    *entries
	left atomic.Bool
}

// Release implements lock.Lease.
func (e *entry) Release(ctx context.Context) error {
	e.l.mu.Lock()
	if !e.left.Swap(true) {
		e.e.n--
	}
	inside := e.e.n
	e.l.mu.Unlock()
	if inside > 0 {
		return nil
	}
	return e.Lease.Release(ctx)
}
