package filelock

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/mortiselock/lock/backend"
)

// What is synced to disk, and what is not. Every process that uses the records
// runs on the machine whose memory holds the unwritten pages, so a kill of any of
// them loses nothing that another could see. Power loss and a kernel crash do
// lose unwritten pages, but they are reboots, and a reboot ends every hold. So a
// record is renamed into place, which makes it atomic for readers, and not
// synced: after a power loss a file may be old, empty or missing, and each of
// these means the same, that nobody holds the key. What must outlive a power loss
// is the token counter; it is synced before a grant is answered (token.go).

// readFile returns the content of a state file, nil when there is none. A file
// that cannot be one of ours matches errDamaged.
func readFile(path string) ([]byte, error) {
	// Opening a FIFO would wait for its writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, syscall.ENXIO), errors.Is(err, syscall.ELOOP):
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	case err != nil:
		return nil, failed("opening a record", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, failed("reading a record", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxRecord {
		return nil, fmt.Errorf("%w: %s, %d bytes", errDamaged, info.Mode(), info.Size())
	}
	data, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		return nil, failed("reading a record", err)
	}
	if data == nil {
		data = []byte{}
	}
	return data, nil
}

// load returns the record of the place, or nil where there is none. The boolean
// says that there is a file that is not a record of ours, which counts as none:
// our own writes are atomic, so somebody else has interfered, and that must not
// block the key for ever.
func (b *files) load(p place) (r *record, damaged bool, err error) {
	data, err := readFile(p.record())
	if data == nil && err == nil {
		return nil, false, nil
	}
	if err == nil {
		r, err = decode(data, p.key)
	}
	if err == nil && !r.plausible(b.boot.run, b.boot.now()) {
		err = fmt.Errorf("%w: it lasts longer than any lease", errDamaged)
	}
	switch {
	case errors.Is(err, errDamaged):
		b.log.Debug("filelock: a state file is not a record", "file", p.record(), "error", err)
		return nil, true, nil
	case errors.Is(err, errNewer):
		return nil, false, fmt.Errorf("%w: filelock: %s was %w; update this program, or give it a directory of its own", backend.ErrPermanent, p.record(), err)
	case err != nil:
		return nil, false, err
	}
	return r, false, nil
}

// save puts the record in place. Readers see the old one or the new one.
func (b *files) save(g *guard, p place, r *record) error {
	data, err := r.encode()
	if err != nil {
		return fmt.Errorf("%w: filelock: encoding a record: %w", backend.ErrPermanent, err)
	}
	if len(data) > maxRecord {
		return fmt.Errorf("%w: filelock: the holder details of %q are too long", backend.ErrInvalid, p.key)
	}
	if err := writeTemp(p.temp, data); err != nil {
		return failed("writing a record", err)
	}
	// A process may have been stopped for long since it took the guard.
	if err := g.check(p); err != nil {
		return err
	}
	err = os.Rename(p.temp, p.record())
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(p.dir, dirMode); err != nil {
			return failed("making a directory for records", err)
		}
		err = os.Rename(p.temp, p.record())
	}
	if err != nil {
		return doubtful("writing a record", err)
	}
	return nil
}

// writeTemp writes the temporary file of a shard. A left-over of a killed process
// is removed, not overwritten: should it be in use after all, its inode is not
// the one that is renamed.
func writeTemp(path string, data []byte) error {
	const flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	f, err := os.OpenFile(path, flags, 0o600)
	if errors.Is(err, fs.ErrExist) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		f, err = os.OpenFile(path, flags, 0o600)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// remove deletes the record, which frees the key and wakes those who watch it.
func (b *files) remove(g *guard, p place) error {
	if err := g.check(p); err != nil {
		return err
	}
	if err := os.Remove(p.record()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return doubtful("removing a record", err)
	}
	return nil
}

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
