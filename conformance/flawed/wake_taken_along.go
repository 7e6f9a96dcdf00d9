package flawed

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z86 = Lock{
	ID: "Z86", Title: "who gives up takes the wake-up along",
	Summary: "A signal wakes who is just giving up; the others sleep on.",
	Seen:    "One signal for each release; bytecodealliance/endive#106.",
	Instead: "Who was woken and does not take the key wakes the next.",
	File:    "wake_taken_along.go", Over: Memory,
	Rule: "GaveUpWakesNext",
	Also: []string{"WaiterOrderLocal", "CancelDuring"},
	On: onPolicy(func(l *lock.Client, b backend.Backend) lock.Locker {
		watcher, ok := b.(backend.Watcher)
		if !ok {
			return newAsking(l, nowAndThen)
		}
		life, shut := context.WithCancel(context.Background())
		return &wakesOne{policy: policy{l}, watcher: watcher, life: life, shut: shut, lines: map[string]*waitingLine{}}
	}),
}

// wakesOne wakes the first in its line for each release that it hears of.
//
//	B and C wait, with time limits; B is the first
//	A: releases; the signal wakes B
//	B: its time limit ends before it gets to run; it returns an error
//	C: sleeps, with the key free, until its next look
//
// It needs a time limit that ends at the moment of a release, and is called a hiccup of
// the network when it does. Caught by GaveUpWakesNext.
//
// Instead: pass it on.
type wakesOne struct {
	policy
	watcher backend.Watcher
	life    context.Context // ends with Close
	shut    context.CancelFunc

	mu    sync.Mutex
	lines map[string]*waitingLine
}

// waitingLine is those who wait for a key.
type waitingLine struct {
	waiters  []chan struct{}
	standing chan struct{}      // closed when the watch stands
	leave    context.CancelFunc // ends the watch
}

// Acquire implements lock.Locker.
func (w *wakesOne) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	lease, err := w.TryAcquire(ctx, key, opts...)
	if err == nil || !waitsFor(err) {
		return lease, err
	}
	woken, standing, leave := w.join(key)
	defer leave()
	select {
	case <-standing:
	case <-ctx.Done():
	}
	for last := err; ; {
		lease, err := w.TryAcquire(ctx, key, opts...)
		switch {
		case err == nil:
			return lease, nil
		case ctx.Err() != nil:
			return nil, gaveUp(ctx, last)
		case !waitsFor(err):
			return nil, err
		}
		last = err
		look := time.NewTimer(nextLook)
		select {
		case <-woken:
			time.Sleep(time.Millisecond) // until it gets to run
		case <-look.C:
		case <-ctx.Done():
		case <-w.life.Done():
			return nil, lock.ErrClosed
		}
		look.Stop()
		if ctx.Err() != nil {
			return nil, gaveUp(ctx, last)
		}
	}
}

// waitsFor reports whether the error may pass.
func waitsFor(err error) bool {
	return errors.Is(err, lock.ErrHeld) || errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrOutcomeUnknown)
}

// join takes a place in the line of the key.
func (w *wakesOne) join(key string) (woken, standing chan struct{}, leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lines[key]
	if l == nil {
		ctx, stop := context.WithCancel(w.life)
		l = &waitingLine{leave: stop, standing: make(chan struct{})}
		w.lines[key] = l
		go w.wake(ctx, l, key)
	}
	woken = make(chan struct{}, 1)
	l.waiters = append(l.waiters, woken)
	return woken, l.standing, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		l.waiters = slices.DeleteFunc(l.waiters, func(c chan struct{}) bool { return c == woken })
		if len(l.waiters) == 0 && w.lines[key] == l {
			l.leave()
			delete(w.lines, key)
		}
	}
}

// wake passes each signal on to the first in the line.
func (w *wakesOne) wake(ctx context.Context, l *waitingLine, key string) {
	signals, err := w.watcher.Watch(ctx, key)
	close(l.standing)
	if err != nil {
		return // they look now and then
	}
	for {
		select {
		case _, ok := <-signals:
			if !ok {
				return
			}
		case <-ctx.Done():
			return
		}
		w.mu.Lock()
		if len(l.waiters) > 0 {
			select {
			case l.waiters[0] <- struct{}{}:
			default:
			}
		}
		w.mu.Unlock()
	}
}

// Close implements lock.Locker.
func (w *wakesOne) Close() error {
	w.shut()
	return w.policy.Close()
}
