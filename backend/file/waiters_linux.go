package filelock

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// knowsWaiters: the system has locks of bytes that belong to an open file description.
const knowsWaiters = true

const noFollow = unix.O_NOFOLLOW | unix.O_NONBLOCK

func lockOf(kind int16, at int64) *unix.Flock_t {
	return &unix.Flock_t{Type: kind, Whence: io.SeekStart, Start: at, Len: 1}
}

func shareByte(f *os.File, at int64) error {
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, lockOf(unix.F_RDLCK, at))
}

func freeByte(f *os.File, at int64) error {
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, lockOf(unix.F_UNLCK, at))
}

func sharedByOthers(f *os.File, at int64) int {
	l := lockOf(unix.F_WRLCK, at)
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, l); err != nil {
		return -1
	}
	if l.Type == unix.F_UNLCK {
		return 0
	}
	return 1
}

// isLinked reports whether the file still has a name.
func isLinked(f *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Nlink > 0
}
