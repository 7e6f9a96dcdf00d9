//go:build unix

package filelock

import (
	"io/fs"
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
