package filelock

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/mortiselock/lock/backend"
)

// hints says what to do about errors of the operating system that waiting does
// not cure. Everything else, a full disk above all, may pass.
var hints = []struct {
	err  error
	hint string
}{
	{fs.ErrPermission, "all processes must run as the user that owns the lock directory; give it to this user or name another directory"},
	{syscall.EROFS, "the file system is read-only; make it writable or name another directory"},
	{syscall.ENOTDIR, "a file is where a directory is needed; move it away or name another directory"},
	{syscall.EISDIR, "a directory is where a file is needed; move it away"},
	{syscall.ENOTEMPTY, "a directory is where a file is needed; move it away"},
	{fs.ErrExist, "something else has the name of a file of the lock directory; move it away"},
	{syscall.ELOOP, "symbolic links go in a circle; name another directory"},
	{syscall.ENAMETOOLONG, "the path is too long; name another directory"},
}

// failed reports an error of the operating system after which nothing was
// changed.
func failed(doing string, err error) error {
	for _, h := range hints {
		if errors.Is(err, h.err) {
			return fmt.Errorf("%w: filelock: %s: %w (%s)", backend.ErrPermanent, doing, err, h.hint)
		}
	}
	return fmt.Errorf("%w: filelock: %s: %w", backend.ErrUnavailable, doing, err)
}

// doubtful reports an error of a rename or an unlink. An I/O error leaves open
// whether the change was made; every other error says that it was not.
func doubtful(doing string, err error) error {
	if errors.Is(err, syscall.EIO) {
		return fmt.Errorf("%w: filelock: %s: %w", backend.ErrOutcomeUnknown, doing, err)
	}
	return failed(doing, err)
}
