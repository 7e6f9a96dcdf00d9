package flawed

import (
	"context"
	"slices"
	"sync"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z121 = Lock{
	ID: "Z121", Title: "a queue whose gaps are filled from its end",
	Summary: "When somebody leaves the middle of the queue, who came last takes that place.",
	Seen:    "line[i] = line[len(line)-1], the quick way to remove from a slice.",
	Instead: "slices.Delete, or a linked list.",
	File:    "swap_removal.go", Over: Memory,
	Rule: "WaiterOrderLocal",
	Also: []string{"FairOrder"},
	On: onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker {
		return &swapping{asking: newAsking(l, nowAndThen), lines: map[string][]chan struct{}{}}
	}),
}

// swapping has the callers who wait for a key in a slice.
//
//	waiting: A B C D E F
//	C gives up: A B F D E
//	F is served before D, who came long before
//
// Tests of the order have waiters who stay. Caught by WaiterOrderLocal, where some leave.
type swapping struct {
	*asking
	mu    sync.Mutex
	lines map[string][]chan struct{}
}

// enter takes a place at the end, whose channel is closed when it is the first.
func (s *swapping) enter(key string) (mine chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	mine = make(chan struct{})
	s.lines[key] = append(s.lines[key], mine)
	if len(s.lines[key]) == 1 {
		close(mine)
	}
	return mine
}

func (s *swapping) leave(key string, mine chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := s.lines[key]
	last := len(line) - 1
	switch i := slices.Index(line, mine); {
	case i > 0:
		line[i] = line[last]
		line = line[:last]
	case last > 0:
		line = line[1:]
		close(line[0])
	default:
		delete(s.lines, key)
		return
	}
	s.lines[key] = line
}

// Acquire implements lock.Locker.
func (s *swapping) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	if err := lock.ValidateKey(key); err != nil || ctx.Err() != nil {
		return s.asking.Acquire(ctx, key, opts...)
	}
	turn, leaveTurn := s.turn(key)
	defer leaveTurn()
	mine := s.enter(key)
	defer s.leave(key, mine)
	select {
	case <-mine:
		if ctx.Err() != nil {
			return nil, gaveUp(ctx, turn.known(key))
		}
		return s.asking.Acquire(ctx, key, opts...)
	case <-ctx.Done():
		return nil, gaveUp(ctx, turn.known(key))
	case <-s.life.Done():
		return nil, lock.ErrClosed
	}
}
