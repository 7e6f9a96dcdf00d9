package filelock

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncData writes the content to disk, and of the metadata only what is needed to
// read it.
func syncData(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); err != unix.EINTR {
			return err
		}
	}
}
