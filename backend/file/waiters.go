package filelock

import (
	"os"
	"sync"

	"github.com/mortiselock/lock/backend"
)

// waiters lets a release know whether other clients watch the key. Each client has one
// open file description of the file of waiters, and on it a shared lock of one byte for
// each key that it watches: the byte that the hash of the key names. The kernel ends the
// locks with the process. A release looks whether any other description has the byte.
// Two keys of one byte would cost nothing but a short pause.
//
// The file is empty, and is made with the directories. Who only watches makes nothing.
type waiters struct {
	mu     sync.Mutex // held for system calls that wait for nothing
	path   string
	file   *os.File
	bytes  map[int64]int // how many watches there are of each
	closed bool
}

// open returns the file, anew where somebody has removed it. create: it is made where
// it is missing. The mutex is held.
func (w *waiters) open(create bool) *os.File {
	if !knowsWaiters || w.closed || w.file != nil && isLinked(w.file) {
		return w.file
	}
	flags := os.O_RDONLY | noFollow
	if create {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(w.path, flags, 0o600)
	if err != nil {
		return w.file // only a courtesy is lost
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		_ = f.Close()
		return w.file
	}
	if w.file != nil {
		_ = w.file.Close()
	}
	w.file = f
	for at := range w.bytes {
		_ = shareByte(f, at)
	}
	return f
}

// make makes the file, so that who watches finds it.
func (w *waiters) make() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open(true)
}

// begin notes a watch.
func (w *waiters) begin(at int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bytes == nil {
		w.bytes = map[int64]int{}
	}
	w.bytes[at]++
	if f := w.open(false); f != nil && w.bytes[at] == 1 {
		_ = shareByte(f, at)
	}
}

// end forgets a watch.
func (w *waiters) end(at int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bytes[at]--; w.bytes[at] > 0 {
		return
	}
	delete(w.bytes, at)
	if w.file != nil {
		_ = freeByte(w.file, at)
	}
}

// others is 1 when other clients watch, 0 when none does, and -1 when that can't be known.
func (w *waiters) others(at int64) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.open(true)
	if f == nil {
		return -1
	}
	return sharedByOthers(f, at)
}

func (w *waiters) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.file != nil {
		_ = w.file.Close()
		w.file = nil
	}
}

var _ backend.ReleaseTeller = (*files)(nil)
