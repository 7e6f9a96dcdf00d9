package filelock

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/fsnotify/fsnotify"

	"github.com/mortiselock/lock/backend"
)

// Watch signals when the record of the key is removed, by a release or by hand.
// An expiry makes no signal; the refusal said how long the hold lasts at most. While
// the directory of the record is missing, the watch is of the one above it, and breaks
// when that gets what it lacks.
func (b *files) Watch(ctx context.Context, key string) (<-chan backend.Hint, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p := b.placeOf(key)
	b.waiters.begin(p.waiter)
	ended := sync.OnceFunc(func() { b.waiters.end(p.waiter) })
	hints, err := b.hub.watch(ctx, p)
	if err != nil {
		ended()
		return nil, err
	}
	context.AfterFunc(ctx, ended)
	return hints, nil
}

// hub shares one file system watcher, and one goroutine that reads it, between
// all watches of a Locker. It exists only while somebody watches.
type hub struct {
	// setup orders the calls that change the watcher. They talk to the kernel,
	// but never wait for anything.
	setup   sync.Mutex
	watcher *fsnotify.Watcher
	reader  sync.WaitGroup // and those who close a watcher
	closed  bool
	shut    func(*fsnotify.Watcher) error // nil: its Close

	// mu guards dirs and the channels in it. It is taken after setup. The reader
	// takes only mu, so that it never waits for a call that waits for it.
	mu   sync.Mutex
	dirs map[string]map[*watch]struct{}
}

// watch is one channel that waits for a record to be removed.
type watch struct {
	dir, name string
	awaited   bool // what has the name does not exist yet
	signal    chan backend.Hint
	forget    func() bool // ends the wait for the end of the context
}

func (h *hub) watch(ctx context.Context, p place) (<-chan backend.Hint, error) {
	h.setup.Lock()
	defer h.setup.Unlock()
	if h.closed {
		return nil, backend.ErrClosed
	}
	for dir, name := p.dir, p.name; ; {
		awaited := dir != p.dir
		w, err := h.begin(&watch{dir: dir, name: name, awaited: awaited, signal: make(chan backend.Hint, 1)})
		switch {
		case errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir):
			dir, name = filepath.Dir(dir), filepath.Base(dir)
			continue
		case err != nil:
			return nil, failed("watching the lock directory", err)
		case awaited && exists(filepath.Join(dir, name)): // somebody has just made it
			h.end(w)
			dir, name = p.dir, p.name
			continue
		}
		w.forget = context.AfterFunc(ctx, func() {
			h.setup.Lock()
			defer h.setup.Unlock()
			h.end(w)
		})
		return w.signal, nil
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// begin lets the reader know of the watch. setup is held.
func (h *hub) begin(w *watch) (*watch, error) {
	if h.watcher == nil {
		fs, err := fsnotify.NewWatcher()
		if err != nil {
			return nil, err
		}
		h.watcher = fs
		h.reader.Go(func() { h.read(fs) })
	}
	if h.add(w) {
		if err := h.watcher.Add(w.dir); err != nil {
			h.end(w)
			return nil, err
		}
	}
	return w, nil
}

// end forgets the watch, and stops watching what nobody watches. setup is held.
func (h *hub) end(w *watch) {
	h.drop(w)
	h.prune(w.dir)
}

// add reports whether the watch is the first of its directory.
func (h *hub) add(w *watch) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dirs == nil {
		h.dirs = map[string]map[*watch]struct{}{}
	}
	first := len(h.dirs[w.dir]) == 0
	if first {
		h.dirs[w.dir] = map[*watch]struct{}{}
	}
	h.dirs[w.dir][w] = struct{}{}
	return first
}

func (h *hub) drop(w *watch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.dirs[w.dir], w)
	if len(h.dirs[w.dir]) == 0 {
		delete(h.dirs, w.dir)
	}
}

// prune stops watching what nobody watches. setup is held.
func (h *hub) prune(dir string) {
	h.mu.Lock()
	used, others := len(h.dirs[dir]) > 0, len(h.dirs) > 0
	h.mu.Unlock()
	switch {
	case h.watcher == nil || used:
	case others:
		_ = h.watcher.Remove(dir) // fails if the directory itself has been removed
	default:
		// The kernel may take long to close one, and whoever watches next need not wait.
		unused := h.watcher
		h.watcher = nil
		h.reader.Go(func() { _ = h.closeWatcher(unused) })
	}
}

func (h *hub) closeWatcher(w *fsnotify.Watcher) error {
	if h.shut != nil {
		return h.shut(w)
	}
	return w.Close()
}

// read passes events on until the watcher is closed.
func (h *hub) read(w *fsnotify.Watcher) {
	for {
		select {
		case e, ok := <-w.Events:
			if !ok {
				return
			}
			if e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename) {
				h.removed(e.Name)
			}
			if e.Has(fsnotify.Create) {
				h.made(e.Name)
			}
		case _, ok := <-w.Errors:
			if !ok {
				return
			}
			h.all() // events were lost
		}
	}
}

// removed signals the watches of a record, and breaks those of a directory.
func (h *hub) removed(path string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.dirs[path] {
		close(w.signal)
	}
	delete(h.dirs, path)
	for w := range h.dirs[filepath.Dir(path)] {
		if w.name == filepath.Base(path) {
			w.wake()
		}
	}
}

// made breaks the watches that waited for a directory.
func (h *hub) made(path string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.dirs[filepath.Dir(path)] {
		if w.awaited && w.name == filepath.Base(path) {
			close(w.signal)
			delete(h.dirs[w.dir], w)
		}
	}
}

// all signals every watch.
func (h *hub) all() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, watches := range h.dirs {
		for w := range watches {
			w.wake()
		}
	}
}

func (w *watch) wake() {
	select {
	case w.signal <- backend.Hint{}:
	default:
	}
}

// close ends all watches and waits for the reader.
func (h *hub) close() error {
	h.setup.Lock()
	defer h.setup.Unlock()
	h.closed = true
	h.mu.Lock()
	for _, watches := range h.dirs {
		for w := range watches {
			w.forget()
			close(w.signal)
		}
	}
	h.dirs = nil
	h.mu.Unlock()
	var err error
	if h.watcher != nil {
		err = h.closeWatcher(h.watcher)
		h.watcher = nil
	}
	h.reader.Wait()
	return err
}

// waiters lets a release know whether other clients watch the key. Each client has one
// open file description of the file of waiters, and on it a shared lock of two bytes for
// each key that it watches: the byte that the hash of the key names, and one of the seats
// behind it, which is the client's for all keys. The kernel ends the locks with the process.
// A release looks whether any other description has the byte, and counts the seats that
// others have: with a turn for one of them alone, two clients could pass the key to each
// other for ever. Two keys of one byte would cost nothing but a short pause, and two clients
// of one seat a turn that comes later.
//
// The file is empty, and is made with the directories. Who only watches makes nothing.
type waiters struct {
	mu     sync.Mutex // held for system calls that wait for nothing
	path   string
	file   *os.File
	bytes  map[int64]int // how many watches there are of each
	closed bool
	seat   int64
}

// waiterSeats is how many clients can be told apart that watch a key.
const waiterSeats = 64

// nextSeat is that of the next client of this process. Another process begins elsewhere.
var nextSeat atomic.Int64

func init() { nextSeat.Store(rand.Int64N(waiterSeats)) }

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
		w.share(at)
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
		w.share(at)
	}
}

// share locks the bytes of a key. The seat comes first: who is seen has one. The mutex is
// held.
func (w *waiters) share(at int64) {
	_ = shareByte(w.file, at+1+w.seat)
	_ = shareByte(w.file, at)
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
		_ = freeByte(w.file, at+1+w.seat)
	}
}

// others is how many other clients watch, at least, and -1 when that can't be known.
func (w *waiters) others(at int64) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.open(true)
	if f == nil {
		return -1
	}
	if n := sharedByOthers(f, at, 1); n <= 0 {
		return n
	}
	return max(1, sharedByOthers(f, at+1, waiterSeats))
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
