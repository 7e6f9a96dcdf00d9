package flawed

import (
	"context"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
)

var healthyFile = Lock{
	ID: "healthy", Title: "a file that is locked for each step, and stays",
	File: "healthy_file.go", Over: Memory,
	On: onFiles(func(d *directory) backend.Backend { return fileLock{dir: d} }),
}

// directory is a directory of a local file system, in memory. A name leads to a file
// until it is unlinked; whoever has opened the file keeps it.
type directory struct {
	mu    sync.Mutex
	files map[string]*file
}

// file is what a name leads to: an inode.
type file struct {
	flock chan struct{} // full while the file is locked
	text  fileText
}

// fileText is what is written in a file.
type fileText struct {
	owner string
	ends  time.Time
}

func newFile(text fileText) *file { return &file{make(chan struct{}, 1), text} }

// open is open(name, O_CREAT).
func (d *directory) open(name string) *file {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files[name] == nil {
		d.files[name] = newFile(fileText{})
	}
	return d.files[name]
}

// create is open(name, O_CREAT|O_EXCL), and a write.
func (d *directory) create(name string, text fileText) (created bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files[name] != nil {
		return false
	}
	d.files[name] = newFile(text)
	return true
}

// read is what is written in the file that has the name now.
func (d *directory) read(name string) fileText {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files[name] == nil {
		return fileText{}
	}
	return d.files[name].text
}

// unlink is unlink(name).
func (d *directory) unlink(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.files, name)
}

// lock is flock(LOCK_EX).
func (f *file) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case f.flock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *file) unlock() { <-f.flock }

// fileLock is a correct lock on the files of one machine. A file is locked for each
// step, which the system ends with the process, and says who holds the key until when.
type fileLock struct {
	clocked
	dir *directory
}

func (l fileLock) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	sent := now()
	f := l.dir.open(req.Key)
	if err := f.lock(ctx); err != nil {
		return backend.Grant{}, err
	}
	defer f.unlock()
	if f.text.owner != req.ID.Hex() && time.Now().Before(f.text.ends) {
		return backend.Grant{}, held(req.Key)
	}
	f.text = fileText{req.ID.Hex(), time.Now().Add(req.TTL)}
	return granted(sent, req.TTL), nil
}

// change does something with the file of a hold.
func (l fileLock) change(ctx context.Context, hold backend.Hold, do func(f *file)) error {
	f := l.dir.open(hold.Key)
	if err := f.lock(ctx); err != nil {
		return err
	}
	defer f.unlock()
	if f.text.owner != hold.ID.Hex() || time.Now().After(f.text.ends) {
		return backend.ErrNotHeld
	}
	do(f)
	return nil
}

func (l fileLock) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	sent := now()
	err := l.change(ctx, hold, func(f *file) { f.text.ends = time.Now().Add(hold.TTL) })
	return renewed(sent, hold.TTL, true, err)
}

func (l fileLock) Release(ctx context.Context, hold backend.Hold) error {
	return l.change(ctx, hold, func(f *file) { f.text = fileText{} })
}

func (l fileLock) Close() error { return nil }

func (l fileLock) Guarantees() backend.Guarantees { return tableLock{}.Guarantees() }
