package filelock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"time"

	"github.com/gofrs/flock"

	"github.com/mortiselock/lock/backend"
)

// The delays between two looks at a guard that somebody else has.
const (
	guardDelay    = 50 * time.Microsecond
	maxGuardDelay = 4 * time.Millisecond
)

// guard is the exclusive right to change the files of one shard. It is an flock
// on an open file description of its own, so that two handles in one process
// exclude each other; POSIX record locks would not do that. The descriptor is
// close-on-exec, and the kernel ends the lock with the process.
type guard struct{ lock *flock.Flock }

// errGuardReplaced says that somebody removed the guard file while we had it
// locked, so that another process may have locked its successor. Nothing was
// changed.
var errGuardReplaced = errors.New("the guard file was replaced")

// guarded runs f while it has the guard of the place. f calls guard.check right
// before it changes a record, and may run again when the guard was replaced.
func (b *files) guarded(ctx context.Context, p place, f func(*guard) error) error {
	if !b.prepared.Load() {
		if err := ctx.Err(); err != nil {
			return b.guardBusy(p, err)
		}
		if err := b.prepare(); err != nil {
			return err
		}
	}
	timeout := time.NewTimer(b.guardWait)
	defer timeout.Stop()
	seat := b.seats[p.shard]
	select {
	case seat <- struct{}{}:
		// The goroutines of one Locker queue here instead of polling the file.
		defer func() { <-seat }()
	case <-ctx.Done():
		return b.guardBusy(p, ctx.Err())
	case <-timeout.C:
		return b.guardBusy(p, nil)
	}
	for {
		g, err := b.lock(ctx, p, timeout.C)
		if err != nil {
			return err
		}
		err = f(g)
		if e := g.lock.Unlock(); e != nil {
			b.log.Warn("filelock: cannot unlock a guard", "file", p.guard, "error", e)
		}
		if !errors.Is(err, errGuardReplaced) {
			return err
		}
	}
}

// lock waits for the guard until ctx ends or the timeout fires. There is no
// blocking flock call behind it, since that could not be cancelled.
func (b *files) lock(ctx context.Context, p place, timeout <-chan time.Time) (*guard, error) {
	delay, remade := guardDelay, false
	for {
		if err := ctx.Err(); err != nil {
			return nil, b.guardBusy(p, err)
		}
		l := flock.New(p.guard, flock.SetPermissions(0o600))
		ok, err := l.TryLock()
		switch {
		case errors.Is(err, fs.ErrNotExist) && !remade:
			// Somebody removed the directory under us. That is no different from
			// removing the records.
			remade = true
			if err := b.prepare(); err != nil {
				return nil, err
			}
			continue
		case err != nil:
			return nil, failed("locking a guard", err)
		case ok:
			g := &guard{lock: l}
			if g.check(p) == nil {
				return g, nil
			}
			_ = l.Unlock()
		}
		wait := time.NewTimer(delay/2 + rand.N(delay/2))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return nil, b.guardBusy(p, ctx.Err())
		case <-timeout:
			wait.Stop()
			return nil, b.guardBusy(p, nil)
		}
		delay = min(2*delay, maxGuardDelay)
	}
}

// check compares the inode that is locked with the one that the path names.
func (g *guard) check(p place) error {
	locked, err := g.lock.Stat()
	if err != nil {
		return failed("looking at a guard", err)
	}
	named, err := os.Stat(p.guard)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failed("looking at a guard", err)
	}
	if err != nil || !os.SameFile(locked, named) {
		return errGuardReplaced
	}
	return nil
}

// guardBusy says that the guard was not had in time, and nothing was changed.
func (b *files) guardBusy(p place, cause error) error {
	if cause != nil {
		return fmt.Errorf("%w: filelock: %w while waiting for the guard file %s", backend.ErrUnavailable, cause, p.guard)
	}
	return fmt.Errorf("%w: filelock: the guard file %s has been locked by others for %s; a process that is stopped in the middle of an operation holds it: find it with \"fuser %s\" and continue or kill it, and leave the file alone",
		backend.ErrUnavailable, p.guard, b.guardWait, p.guard)
}
