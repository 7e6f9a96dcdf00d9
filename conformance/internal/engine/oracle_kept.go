package engine

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
	"weak"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// The memory oracle tells what is still reachable of what the calls of a case were given.
// It asks the garbage collector about each single thing, so that it is not disturbed by
// whatever else runs in the process, as the size of the heap would be.

// Copies are texts and contexts that were passed to calls, each in memory of its own. Its
// methods may be called at the same time.
type Copies struct {
	mu  sync.Mutex
	all []func() (left bool)
}

// Copy is a text that nobody else has. It must be longer than 16 bytes, since smaller
// things share their memory.
func (k *Copies) Copy(text string) string {
	text = strings.Clone(text)
	remember(k, unsafe.StringData(text))
	return text
}

// Follow is a context that nobody else has. It counts in n what waits for its end.
func (k *Copies) Follow(ctx context.Context, n *atomic.Int64) context.Context {
	f := &followed{ctx, n}
	remember(k, f)
	return f
}

func remember[T any](k *Copies, p *T) {
	w := weak.Make(p)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = append(k.all, func() bool { return w.Value() != nil })
}

// Len is how many there were.
func (k *Copies) Len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.all)
}

func (k *Copies) left() (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, left := range k.all {
		if left() {
			n++
		}
	}
	return n
}

// Forgotten waits until at most n are reachable, and returns how many are when the
// patience ends. Each look collects the garbage of the whole process, so there are few in virtual
// time, where to wait costs nothing.
func (e *Env) Forgotten(k *Copies, n int, patience time.Duration) int {
	pause := 50 * time.Millisecond
	grow := func(d time.Duration) time.Duration { return d * 3 / 2 }
	if e.Virtual() {
		grow = func(d time.Duration) time.Duration { return d * 4 }
	}
	for end := time.Now().Add(patience); ; pause = grow(pause) {
		left := k.left()
		if left > n {
			runtime.GC()
			left = k.left()
		}
		rest := time.Until(end)
		if left <= n || rest < 0 {
			return left
		}
		e.Pause(min(pause, rest+1))
	}
}

// followed is a context that counts what waits for its end: contexts that are made of it
// and functions of context.AfterFunc. It carries no values.
type followed struct {
	context.Context
	n *atomic.Int64
}

// Value hides that the context is one of the standard library, which would count for itself.
func (f *followed) Value(any) any { return nil }

// AfterFunc is what package context asks for.
func (f *followed) AfterFunc(run func()) (stop func() bool) {
	f.n.Add(1)
	inner := context.AfterFunc(f.Context, func() { f.n.Add(-1); run() })
	return func() bool {
		stopped := inner()
		if stopped {
			f.n.Add(-1)
		}
		return stopped
	}
}

// OpenApart opens a Locker that shares no text with its backend, which may have to remember
// keys for their tokens.
func (e *Env) OpenApart(ctx context.Context) (lock.Locker, error) {
	b, err := e.openBackend(ctx)
	if err != nil {
		return nil, err
	}
	return e.MakeLocker(apart{b}, e.TTL)
}

// apart is the primitives of a backend, with copies of the keys.
type apart struct{ backend.Backend }

func (a apart) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	req.Key = strings.Clone(req.Key)
	return a.Backend.Try(ctx, req)
}

func (a apart) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	hold.Key = strings.Clone(hold.Key)
	return a.Backend.Renew(ctx, hold)
}

func (a apart) Release(ctx context.Context, hold backend.Hold) error {
	hold.Key = strings.Clone(hold.Key)
	return a.Backend.Release(ctx, hold)
}

// Clock is that of the backend.
func (a apart) Clock() backend.Clock {
	if c, ok := backend.As[backend.Clocked](a.Backend); ok {
		return c.Clock()
	}
	return backend.SystemClock()
}

// NotifyLoss hands on what the backend learns by itself.
func (a apart) NotifyLoss(lost func(id backend.ID, cause error)) {
	if n, ok := backend.As[backend.LossNotifier](a.Backend); ok {
		n.NotifyLoss(lost)
	}
}
