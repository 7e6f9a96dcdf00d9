package filelock

import (
	"os"

	"golang.org/x/sys/unix"
)

// localFileSystem refuses directories that other machines may share.
func localFileSystem(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return failed("looking at the file system of the lock directory", &os.PathError{Op: "statfs", Path: dir, Err: err})
	}
	if st.Flags&unix.MNT_LOCAL == 0 {
		return refuseNetwork(dir, unix.ByteSliceToString(st.Fstypename[:]))
	}
	return nil
}
