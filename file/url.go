package filelock

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/mortiselock/lock/backend"
)

// Scheme is the URL scheme of this backend: file: (the directory of
// [DefaultDir]), file:/absolute/directory, or file:relative/directory. It has no
// host and no parameters.
const Scheme = "file"

func init() {
	backend.DefaultMux.Register(Scheme, Opener)
	backend.DefaultMux.Declare("file:", (&files{}).Guarantees())
}

// Opener opens the directory that a file: URL names, as [New] does. It is the
// backend.Opener for those who have a mux of their own.
func Opener(ctx context.Context, u *backend.URL, cfg backend.OpenConfig) (backend.Backend, error) {
	dir, err := dirOf(u)
	if err != nil {
		return nil, err
	}
	return newFiles(ctx, dir, cfg.Logger)
}

// dirOf reads the directory from a URL; it is empty for the default directory.
func dirOf(u *backend.URL) (string, error) {
	switch {
	case u.User != "" || u.HasPassword:
		return "", fmt.Errorf("%w: filelock: a file URL has no user and no password; write file:/directory", backend.ErrInvalid)
	case len(u.Hosts) > 0:
		return "", fmt.Errorf("%w: filelock: a file URL has no host, and this one names %q; write file:relative/directory or file:///absolute/directory",
			backend.ErrInvalid, strings.Join(u.Hosts, ","))
	case strings.HasPrefix(u.Path, "~"):
		return "", fmt.Errorf("%w: filelock: %s: only a shell replaces ~, and only at the beginning of a word; write file:$HOME/..., or a path that begins with / for a directory of that name", backend.ErrInvalid, u)
	case strings.ContainsRune(u.Path, 0):
		return "", fmt.Errorf("%w: filelock: the path of the file URL contains a NUL byte", backend.ErrInvalid)
	}
	if err := u.Query.Done(); err != nil {
		return "", err
	}
	path := u.Path
	if runtime.GOOS == "windows" {
		if rest := strings.TrimPrefix(path, "/"); filepath.VolumeName(filepath.FromSlash(rest)) != "" {
			path = rest
		}
	}
	return filepath.FromSlash(path), nil
}
