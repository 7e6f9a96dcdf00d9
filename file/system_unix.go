//go:build unix

package filelock

import (
	"io/fs"
	"os"
	"syscall"
)

// checksModes: permission bits mean something.
const checksModes = true

// ownerOf is the user id of a file's owner.
func ownerOf(info fs.FileInfo) (int, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}

// syncDir writes the names in a directory to disk.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
