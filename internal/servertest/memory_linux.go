package servertest

import (
	"bufio"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const (
	shm = "/dev/shm"
	// enoughMemory is more than the data of all the servers that the packages of a
	// test run start at the same time.
	enoughMemory = 6 << 30
)

// inMemory returns a directory whose files are in memory, or "" where there is none
// with enough room. A server that is killed finds its data there again, and the tests'
// times do not depend on a disk that others write to.
func inMemory() string {
	var st unix.Statfs_t
	if err := unix.Statfs(shm, &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		return ""
	}
	if st.Bavail*uint64(st.Bsize) < enoughMemory || availableMemory() < enoughMemory || unix.Access(shm, unix.W_OK|unix.X_OK) != nil {
		return ""
	}
	return shm
}

// availableMemory is what proc(5) says can be had without swapping, in bytes; 0 if it
// does not say.
func availableMemory() uint64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var kib uint64
		if n, _ := fmt.Sscanf(lines.Text(), "MemAvailable: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	return 0
}
