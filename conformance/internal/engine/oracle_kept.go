package engine

import (
	"context"
	"runtime"
	"strings"
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

// Copies are texts that were passed to calls, each in memory of its own.
type Copies struct{ all []weak.Pointer[byte] }

// Copy is a text that nobody else has. It must be longer than 16 bytes, since smaller
// things share their memory.
func (k *Copies) Copy(text string) string {
	text = strings.Clone(text)
	k.all = append(k.all, weak.Make(unsafe.StringData(text)))
	return text
}

// Len is how many there were.
func (k *Copies) Len() int { return len(k.all) }

func (k *Copies) left() (n int) {
	for _, p := range k.all {
		if p.Value() != nil {
			n++
		}
	}
	return n
}

// Forgotten waits until at most n are reachable, and returns how many are when the
// patience ends.
func (e *Env) Forgotten(k *Copies, n int, patience time.Duration) int {
	for end := time.Now().Add(patience); ; e.Pause(50 * time.Millisecond) {
		runtime.GC()
		if left := k.left(); left <= n || time.Now().After(end) {
			return left
		}
	}
}

// Followed is a context that counts what waits for its end: contexts that are made of it
// and functions of context.AfterFunc. It carries no values.
type Followed struct {
	context.Context
	n *atomic.Int64
}

// Follow counts in n.
func Follow(ctx context.Context, n *atomic.Int64) Followed { return Followed{ctx, n} }

// Value hides that the context is one of the standard library, which would count for itself.
func (f Followed) Value(any) any { return nil }

// AfterFunc is what package context asks for.
func (f Followed) AfterFunc(run func()) (stop func() bool) {
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
