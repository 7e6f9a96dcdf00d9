package filelock

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
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

// findDir returns the absolute path of the lock directory, and refuses it where locks
// would not be safe. It creates nothing: the directory may be missing until the first
// request that writes.
func findDir(dir string) (string, error) {
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
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return dir, localFileSystem(existing(dir))
	case err != nil:
		return "", failed("looking at the lock directory", err)
	case !info.IsDir():
		return "", notDirectory(dir)
	case checksModes && (private && info.Mode().Perm()&0o022 != 0 || info.Mode()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0):
		return "", changeable(dir)
	}
	for _, sub := range subDirs {
		path := filepath.Join(dir, sub)
		info, err := os.Lstat(path)
		switch {
		case err != nil: // it is missing, or the first request says what is wrong
		case !info.IsDir():
			return "", notDirectory(path)
		case checksModes && info.Mode().Perm()&0o022 != 0:
			return "", changeable(path)
		}
	}
	return dir, localFileSystem(dir)
}

// existing is the directory, or the nearest one above it that there is.
func existing(dir string) string {
	for {
		above := filepath.Dir(dir)
		if exists(dir) || above == dir {
			return dir
		}
		dir = above
	}
}

func notDirectory(path string) error {
	return fmt.Errorf("%w: filelock: %s is not a directory; move it away or name another directory", backend.ErrPermanent, path)
}

func changeable(path string) error {
	return fmt.Errorf("%w: filelock: other users may change %s; take that away (chmod go-w) or name another directory", backend.ErrPermanent, path)
}

// prepare makes the directories where they are missing, and refuses those of another
// user, whose locks this process could neither see nor respect, and who could not use
// the files that it makes there. Whoever only looks needs none of that.
func (b *files) prepare() error {
	if err := makeDir(b.dir); err != nil {
		return err
	}
	if err := localFileSystem(b.dir); err != nil {
		return err
	}
	if b.private {
		if err := onlyMine(b.dir, os.Stat); err != nil {
			return err
		}
	}
	for _, sub := range subDirs {
		path := filepath.Join(b.dir, sub)
		if err := makeDir(path); err != nil {
			return err
		}
		if err := onlyMine(path, os.Lstat); err != nil {
			return err
		}
	}
	b.waiters.make()
	b.prepared.Store(true)
	return nil
}

// dirMode keeps others out: who can write the records can take every lock.
const dirMode = 0o700

// makeDir makes a directory and those above it. Where the file system says that there is
// no such directory, as that of /proc does, waiting is of no use.
func makeDir(path string) error {
	err := os.MkdirAll(path, dirMode)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: filelock: making the lock directory: %w (its file system does not allow it; name another directory)", backend.ErrPermanent, err)
	case err != nil:
		return failed("making the lock directory", err)
	}
	return nil
}

// onlyMine refuses what is not a directory, and one that another user owns or can
// change.
func onlyMine(path string, stat func(string) (fs.FileInfo, error)) error {
	info, err := stat(path)
	if err != nil {
		return failed("looking at the lock directory", err)
	}
	switch uid, ok := ownerOf(info); {
	case !info.IsDir():
		return notDirectory(path)
	case ok && uid != os.Geteuid():
		return fmt.Errorf("%w: filelock: %s belongs to user id %d and this process runs as %d; run all processes as one user or name another directory",
			backend.ErrPermanent, path, uid, os.Geteuid())
	case checksModes && info.Mode().Perm()&0o022 != 0:
		return changeable(path)
	}
	return nil
}

// untouched reports that there is no lock directory. A name that was mistyped looks like
// one that nobody has used yet, so the log says it once.
func (b *files) untouched() bool {
	if _, err := os.Stat(b.dir); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if b.private {
		return true // nobody has mistyped it
	}
	b.missed.Do(func() {
		b.log.Warn("filelock: the lock directory does not exist; nobody has locked anything there yet, or its name is not right", "directory", b.dir)
	})
	return true
}

// refuseNetwork is the refusal of a file system that other machines may share.
// They have another boot clock, and would take each other's records for ones
// from before a reboot.
func refuseNetwork(dir, kind string) error {
	return fmt.Errorf("%w: filelock: %s is on a %s file system, which other machines may share, and file locks exclude processes of one machine only; name a directory on a local file system, or use a backend with a server",
		backend.ErrPermanent, dir, kind)
}

// shards is the number of guards and of token counters. Keys that share a shard
// wait for each other for the length of one operation, never for the length of a
// hold. Guards and counters are never removed, and their number does not grow
// with the number of keys.
const shards = 256

// The directories inside the lock directory.
const (
	guardDir = "guards" // guards/ab: empty, locked for the length of one operation
	tokenDir = "tokens" // tokens/ab: the last token of the shard
	holdDir  = "holds"  // holds/ab/<hash of the key>.json: the record, while there are holds
	tempDir  = "tmp"    // tmp/ab: what is about to be renamed to a record

	waitersFile = "waiters" // empty: who watches a key has two bytes of it locked
)

var subDirs = []string{guardDir, tokenDir, holdDir, tempDir}

// place is where a key lives.
type place struct {
	key   string
	shard byte
	guard string
	token string
	temp  string
	dir   string // of the record
	name  string // of the record in dir

	waiter int64 // the byte of the file of waiters
}

// record is the path of the state file.
func (p place) record() string { return filepath.Join(p.dir, p.name) }

// placeOf names files by the SHA-256 of the key, so that every byte of the key
// counts whatever the file system thinks of case, length or slashes. The record
// holds the key itself, which is compared.
func (b *files) placeOf(key string) place {
	sum := sha256.Sum256([]byte(key))
	p := b.shardOf(sum[0])
	p.key = key
	p.name = hex.EncodeToString(sum[:]) + ".json"
	p.waiter = int64(binary.BigEndian.Uint64(sum[:]) >> 2)
	return p
}

// shardOf is what all places of a shard have in common.
func (b *files) shardOf(n byte) place {
	shard := hex.EncodeToString([]byte{n})
	return place{
		shard: n,
		guard: filepath.Join(b.dir, guardDir, shard),
		token: filepath.Join(b.dir, tokenDir, shard),
		temp:  filepath.Join(b.dir, tempDir, shard),
		dir:   filepath.Join(b.dir, holdDir, shard),
	}
}
