package flawed

import (
	"context"
	"slices"
	"strconv"
	"sync"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z73 = Lock{
	ID: "Z73", Title: "places in a queue that are sorted as text",
	Summary: "The tenth comes before the second, since \"10\" sorts before \"2\".",
	Seen:    "Sequence numbers without leading zeros in names.",
	Instead: "Compare numbers, or write them with a fixed width.",
	File:    "places_as_text.go", Over: Memory,
	Rule: "WaiterOrderLocal",
	On: onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker {
		return &asText{asking: newAsking(l, nowAndThen), lines: map[string]*line{}}
	}),
}

// asText gives each caller a name in the queue of its key, and lets the first name ask.
//
//	A holds job; waiting: job/1, job/2 ... job/9, job/10
//	A releases: job/1 is served, then job/10, then job/2
//
// Up to nine waiters everything is in order. Caught by WaiterOrderLocal, which has more.
//
// Instead: job/0000000010.
type asText struct {
	*asking
	mu    sync.Mutex
	lines map[string]*line
}

// line is the queue of a key.
type line struct {
	last  int // number that was given
	names []string
	moved chan struct{} // closed when somebody leaves
}

// enter takes a place at the end.
func (a *asText) enter(key string) (l *line, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l = a.lines[key]
	if l == nil {
		l = &line{moved: make(chan struct{})}
		a.lines[key] = l
	}
	l.last++
	name = strconv.Itoa(l.last)
	l.names = append(l.names, name)
	slices.Sort(l.names)
	return l, name
}

// first reports whether the name is the first, and otherwise what to wait for.
func (a *asText) first(l *line, name string) (bool, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return l.names[0] == name, l.moved
}

func (a *asText) leave(key string, l *line, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l.names = slices.DeleteFunc(l.names, func(n string) bool { return n == name })
	close(l.moved)
	l.moved = make(chan struct{})
	if len(l.names) == 0 {
		delete(a.lines, key)
	}
}

// Acquire implements lock.Locker.
func (a *asText) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	if err := lock.ValidateKey(key); err != nil || ctx.Err() != nil {
		return a.asking.Acquire(ctx, key, opts...)
	}
	turn, leaveTurn := a.turn(key)
	defer leaveTurn()
	l, name := a.enter(key)
	defer a.leave(key, l, name)
	for {
		mine, moved := a.first(l, name)
		switch {
		case ctx.Err() != nil: // perhaps at once with that of the first
			return nil, gaveUp(ctx, turn.known(key))
		case mine:
			return a.asking.Acquire(ctx, key, opts...)
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return nil, gaveUp(ctx, turn.known(key))
		case <-a.life.Done():
			return nil, lock.ErrClosed
		}
	}
}
