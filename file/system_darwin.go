package filelock

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/mortiselock/lock/backend"
)

const expiryClock = backend.ClockHost

var clockAssumptions []string

// openBootClock reads CLOCK_MONOTONIC, which counts sleep on this system, and the
// UUID that the kernel draws at each boot.
func openBootClock() (bootClock, error) {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil || id == "" {
		return bootClock{}, fmt.Errorf("%w: filelock: cannot read kern.bootsessionuuid: %v", backend.ErrPermanent, err)
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return bootClock{}, fmt.Errorf("%w: filelock: cannot read CLOCK_MONOTONIC: %v", backend.ErrPermanent, err)
	}
	return bootClock{run: runID{Boot: id}, now: boottime}, nil
}

func boottime() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano()
}

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
