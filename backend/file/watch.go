package filelock

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

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
	reader  sync.WaitGroup
	closed  bool

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
		_ = h.watcher.Close()
		h.watcher = nil
	}
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
		err = h.watcher.Close()
		h.watcher = nil
	}
	h.reader.Wait()
	return err
}
