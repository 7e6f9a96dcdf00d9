package engine

import (
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dieTogether has the kernel kill the process when this one is gone, which also
// ends one that is stopped.
func dieTogether(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// standsStill reports whether every thread of the process has stopped. It leaves
// the status of the process for those who wait for it.
func standsStill(pid int) (bool, error) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WSTOPPED|unix.WNOWAIT|unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		return err == nil && info.Signo != 0, err
	}
}

const stopTick = time.Millisecond // between two looks whether a process has stopped
