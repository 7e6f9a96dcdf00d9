package servertest

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gofrs/flock"
)

const tempPrefix = "mortise-servertest-"

// tempDir is a directory that belongs to this process while the lock in it is
// held. The lock ends with the process, so that a later one can tell what was
// left behind.
type tempDir struct {
	path string
	lock *flock.Flock
}

// TempDir returns a directory for the test's files, which goes at its cleanup. It is
// where servers keep their data (see the package comment), so that the times of the test
// do not depend on a disk that others write to.
func TempDir(t TB) string {
	t.Helper()
	d, err := newTempDir("dir", false)
	if err != nil {
		t.Fatalf("servertest: %v", err)
		return ""
	}
	t.Cleanup(func() {
		if err := d.remove(); err != nil {
			t.Logf("servertest: %v", err)
		}
	})
	path := filepath.Join(d.path, "files")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatalf("servertest: %v", err)
	}
	return path
}

var sweepOnce sync.Once

func newTempDir(name string, disk bool) (*tempDir, error) {
	parent := tempParent()
	sweepOnce.Do(func() {
		sweepTempDirs(parent, time.Minute)
		if parent != os.TempDir() {
			sweepTempDirs(os.TempDir(), time.Minute)
		}
	})
	if disk {
		parent = os.TempDir()
	}
	return makeTempDir(parent, name)
}

func makeTempDir(parent, name string) (*tempDir, error) {
	path, err := os.MkdirTemp(parent, tempPrefix+name+"-")
	if err != nil {
		return nil, err
	}
	d := &tempDir{path: path, lock: flock.New(filepath.Join(path, "lock"))}
	if err := d.lock.Lock(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	return d, nil
}

// tempParent is where servers keep their data: where TMPDIR says, else in memory where
// that can be had, else where temporary files are.
func tempParent() string {
	if os.Getenv("TMPDIR") == "" {
		if dir := inMemory(); dir != "" {
			return dir
		}
	}
	return os.TempDir()
}

func (d *tempDir) remove() error {
	return errors.Join(d.lock.Close(), os.RemoveAll(d.path))
}

// sweepTempDirs removes the directories of processes that were killed. It
// spares those younger than minAge, which may not have been locked yet, and
// whatever it may not touch.
func sweepTempDirs(parent string, minAge time.Duration) {
	found, err := filepath.Glob(filepath.Join(parent, tempPrefix+"*"))
	if err != nil {
		return
	}
	for _, path := range found {
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() || time.Since(info.ModTime()) < minAge {
			continue
		}
		d := &tempDir{path: path, lock: flock.New(filepath.Join(path, "lock"))}
		if free, err := d.lock.TryLock(); err == nil && free {
			_ = d.remove() // the next run tries again
		} else {
			_ = d.lock.Close()
		}
	}
}
