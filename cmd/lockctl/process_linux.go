package main

import (
	"bytes"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent makes the kernel kill the child when lockctl dies, without any
// help from us. It does not reach the child's own children; the guard does. The
// kernel drops the setting for set-user-ID commands.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// dieWithParentToo does the same for a process that already runs and is about to
// become the child: the kernel keeps the setting per thread.
func dieWithParentToo() { _ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0) }

// ownExecutable is this binary, even if its file has been replaced.
func ownExecutable() (string, error) { return "/proc/self/exe", nil }

// nameGuard shows the guard under its own name in ps and to pkill, instead of the
// "exe" that it was started as.
func nameGuard() { _ = os.WriteFile("/proc/self/comm", []byte(guardName), 0) }

// sharedClock is a clock that all processes of this machine read alike and that
// counts suspend, in nanoseconds.
func sharedClock() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}

// onlyZombies reports whether all members of the group have ended and only wait
// to be reaped, for which a container without an init process can take for ever.
func onlyZombies(pgid int) bool {
	proc, err := os.Open("/proc")
	if err != nil {
		return false
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return false
	}
	for _, name := range names {
		if name[0] < '1' || name[0] > '9' {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue // ended meanwhile
		}
		// pid (name) state ppid pgrp ...; the name may contain anything.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 3 {
			continue
		}
		if g, _ := strconv.Atoi(string(fields[2])); g == pgid && fields[0][0] != 'Z' && fields[0][0] != 'X' {
			return false
		}
	}
	return true
}
