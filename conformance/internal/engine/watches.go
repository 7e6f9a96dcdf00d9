package engine

import (
	"context"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
)

// Watches counts what a Locker watches, by key.
type Watches struct {
	mu     sync.Mutex
	begun  map[string]int
	open   map[string]int // those whose contexts have not ended
	broken map[string]int // those that the server has ended
}

// FaultyWatched is FaultyWhole, where the watches of the Locker are counted.
func (e *Env) FaultyWatched() (*Client, *faultlock.Faults, *Watches) {
	w := &Watches{begun: map[string]int{}, open: map[string]int{}, broken: map[string]int{}}
	c, f := e.faultyOver(Whole, nil, func(b backend.Backend) backend.Backend { return watched{b, w} })
	return c, f, w
}

// LockerWithWatches opens a Locker whose watches are counted, where the suite makes its
// Lockers of backends, and theirs watch. Else it returns nil.
func (e *Env) LockerWithWatches() (*Client, *Watches) {
	if e.OpenBackend == nil || e.Open != nil {
		return nil, nil
	}
	w := &Watches{begun: map[string]int{}, open: map[string]int{}, broken: map[string]int{}}
	able := false
	c := e.LockerFrom(func(ctx context.Context) (lock.Locker, error) {
		b, err := e.openBackend(ctx)
		if err != nil {
			return nil, err
		}
		able = Implements[backend.Watcher](b)
		// A Config.Wrap knows what is disturbed, and need not look for what a wrapper lacks.
		return e.MakeLocker(Whole.of(faultlock.New(watched{b, w}, nil)), e.TTL)
	})
	if !able {
		return nil, nil
	}
	return c, w
}

// Begun is how many watches of the key there were.
func (w *Watches) Begun(key string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.begun[key]
}

// Broken is how many watches of the key the server has ended.
func (w *Watches) Broken(key string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.broken[key]
}

// Ended waits until at most n watches of the key go on, and returns how many do when the
// patience ends.
func (w *Watches) Ended(e *Env, key string, n int, patience time.Duration) int {
	for end := time.Now().Add(patience); ; e.Pause(5 * time.Millisecond) {
		w.mu.Lock()
		open := w.open[key]
		w.mu.Unlock()
		if open <= n || time.Now().After(end) {
			return open
		}
	}
}

func (w *Watches) add(key string, begun, open int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun[key] += begun
	w.open[key] += open
}

type watched struct {
	backend.Backend
	w *Watches
}

// Unwrap implements backend.Wrapper.
func (c watched) Unwrap() backend.Backend { return c.Backend }

// Watch implements backend.Watcher.
func (c watched) Watch(ctx context.Context, key string) (<-chan backend.Hint, error) {
	w, _ := backend.As[backend.Watcher](c.Backend)
	hints, err := w.Watch(ctx, key)
	if err != nil {
		return nil, err
	}
	c.w.add(key, 1, 1)
	context.AfterFunc(ctx, func() { c.w.add(key, 0, -1) })
	if hints == nil {
		return nil, nil //nolint:nilnil // as the lock did: it is caught elsewhere
	}
	out := make(chan backend.Hint, 1)
	go c.pass(ctx, key, hints, out)
	return out, nil
}

// pass hands signals on, and sees when the watch breaks.
func (c watched) pass(ctx context.Context, key string, hints <-chan backend.Hint, out chan<- backend.Hint) {
	for {
		select {
		case hint, ok := <-hints:
			if !ok {
				if ctx.Err() == nil {
					c.w.mu.Lock()
					c.w.broken[key]++
					c.w.mu.Unlock()
				}
				close(out)
				return
			}
			select {
			case out <- hint:
			default: // a signal is already waiting
			}
		case <-ctx.Done():
			return
		}
	}
}
