package filelock

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/mortiselock/lock/backend"
)

const expiryClock = backend.ClockHost

var clockAssumptions = []string{
	"All processes see the same CLOCK_BOOTTIME; a time namespace that shifts it is refused at open.",
}

const (
	bootIDFile    = "/proc/sys/kernel/random/boot_id"
	timeOffsets   = "/proc/self/timens_offsets"
	boottimeEntry = "boottime"
)

// openBootClock reads CLOCK_BOOTTIME and the kernel's boot id. Without a boot id
// there is no telling whether a record is from before a reboot, and a process
// that guesses would disagree with those that know, so it is an error.
func openBootClock() (bootClock, error) {
	id, err := os.ReadFile(bootIDFile)
	if err != nil || len(strings.TrimSpace(string(id))) == 0 {
		return bootClock{}, fmt.Errorf("%w: filelock: cannot read the boot id from %s: %v; mount /proc", backend.ErrPermanent, bootIDFile, err)
	}
	// The file is missing where the kernel has no time namespaces.
	if offsets, err := os.ReadFile(timeOffsets); err == nil && shiftedBoottime(string(offsets)) {
		return bootClock{}, fmt.Errorf("%w: filelock: this process is in a time namespace that shifts the boot clock, so it would disagree with others about when a lease ends; run it outside",
			backend.ErrPermanent)
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return bootClock{}, fmt.Errorf("%w: filelock: cannot read CLOCK_BOOTTIME: %v; allow clock_gettime in the sandbox", backend.ErrPermanent, err)
	}
	return bootClock{id: strings.TrimSpace(string(id)), now: boottime}, nil
}

func boottime() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return ts.Nano()
}

// shiftedBoottime reads lines such as "boottime 1728000 0" (time_namespaces(7)).
func shiftedBoottime(offsets string) bool {
	for line := range strings.Lines(offsets) {
		f := strings.Fields(line)
		if len(f) == 3 && f[0] == boottimeEntry && (f[1] != "0" || f[2] != "0") {
			return true
		}
	}
	return false
}
