package servertest

import (
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ownGroup sets how the child is started: in a process group of its own, and
// killed by the kernel when this process is gone.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitStopped returns when the child stands still. The kernel reports that
// (WSTOPPED) once the last thread has stopped.
func awaitStopped(pid int) error {
	for end := time.Now().Add(exitBound); ; time.Sleep(time.Millisecond) {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WSTOPPED|unix.WNOWAIT|unix.WNOHANG, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("waiting for process %d to stop: %w", pid, err)
		case info.Signo != 0:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("process %d has not stopped within %v", pid, exitBound)
		}
	}
}
