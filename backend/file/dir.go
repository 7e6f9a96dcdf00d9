package filelock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/mortiselock/lock/backend"
)

// DefaultDir is the directory that file: without a path means: one per user, on
// every Unix except macOS $XDG_STATE_HOME/mortise/locks, by default
// $HOME/.local/state/mortise/locks, elsewhere mortise/locks in
// [os.UserCacheDir]. It survives logout, unlike $XDG_RUNTIME_DIR. Processes of
// one user exclude each other there only if they have the same $HOME (or
// $XDG_STATE_HOME). DefaultDir creates nothing. The error matches
// backend.ErrPermanent.
func DefaultDir() (string, error) {
	sub := filepath.Join("mortise", "locks")
	if runtime.GOOS == "windows" || runtime.GOOS == "darwin" {
		base, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("%w: filelock: no default directory: %w; name one: file:/directory", backend.ErrPermanent, err)
		}
		return filepath.Join(base, sub), nil
	}
	base := os.Getenv("XDG_STATE_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("%w: filelock: no default directory: %w; set HOME or XDG_STATE_HOME, or name a directory: file:/directory", backend.ErrPermanent, err)
		}
		base = filepath.Join(home, ".local", "state")
	}
	if !filepath.IsAbs(base) {
		return "", fmt.Errorf("%w: filelock: no default directory: XDG_STATE_HOME or HOME is the relative path %q; correct it, or name a directory: file:/directory", backend.ErrPermanent, base)
	}
	return filepath.Join(base, sub), nil
}

// prepareDir makes the lock directory where it is missing, refuses it where locks
// would not be safe, and returns its absolute path.
func prepareDir(dir string) (string, error) {
	private := dir == ""
	if private {
		var err error
		if dir, err = DefaultDir(); err != nil {
			return "", err
		}
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", failed("finding the lock directory", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", failed("making the lock directory", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return "", failed("looking at the lock directory", err)
	}
	if private {
		if err := onlyMine(dir, info); err != nil {
			return "", err
		}
	} else if mode := info.Mode(); mode&0o002 != 0 && mode&fs.ModeSticky == 0 && checksModes {
		return "", fmt.Errorf("%w: filelock: everybody may remove files from %s; take that away (chmod o-w) or name another directory", backend.ErrPermanent, dir)
	}
	if err := localFileSystem(dir); err != nil {
		return "", err
	}
	if err := makeDirs(dir); err != nil {
		return "", err
	}
	return dir, probe(dir)
}

// makeDirs makes the directories inside the lock directory, and refuses those of
// another user, whose locks this process could neither see nor respect.
func makeDirs(dir string) error {
	for _, sub := range []string{guardDir, tokenDir, holdDir, tempDir} {
		path := filepath.Join(dir, sub)
		if err := os.MkdirAll(path, 0o700); err != nil {
			return failed("making the lock directory", err)
		}
		info, err := os.Lstat(path)
		if err != nil {
			return failed("looking at the lock directory", err)
		}
		if !info.IsDir() {
			return fmt.Errorf("%w: filelock: %s is not a directory; move it away or name another directory", backend.ErrPermanent, path)
		}
		if err := onlyMine(path, info); err != nil {
			return err
		}
	}
	return nil
}

// onlyMine refuses a directory that another user owns or can change.
func onlyMine(path string, info fs.FileInfo) error {
	if uid, ok := ownerOf(info); ok && uid != os.Geteuid() {
		return fmt.Errorf("%w: filelock: %s belongs to user id %d and this process runs as %d; run all processes as one user or name another directory",
			backend.ErrPermanent, path, uid, os.Geteuid())
	}
	if checksModes && info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%w: filelock: other users may change %s; take that away (chmod go-w) or name another directory", backend.ErrPermanent, path)
	}
	return nil
}

// probe finds out whether files can be written, so that a read-only or full file
// system is reported at open.
func probe(dir string) error {
	f, err := os.CreateTemp(filepath.Join(dir, tempDir), "probe-*")
	if err != nil {
		return failed("writing to the lock directory", err)
	}
	_, err = f.WriteString("probe")
	err = errors.Join(err, f.Close(), os.Remove(f.Name()))
	if err != nil {
		return failed("writing to the lock directory", err)
	}
	return nil
}
