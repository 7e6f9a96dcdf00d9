package backend

import (
	"syscall"
	"unsafe"
)

// clockBoottime is CLOCK_BOOTTIME of clock_gettime(2): like CLOCK_MONOTONIC, and
// it also counts the time for which the system was suspended.
const clockBoottime = 7

var bootBase = boottime()

func suspendAware() Instant { return boottime() - bootBase }

func boottime() Instant {
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		// A sandbox may forbid the call; the monotonic reading then decides alone.
		return 0
	}
	return Instant(ts.Nano())
}
