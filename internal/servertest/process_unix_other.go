//go:build unix && !linux

package servertest

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ownGroup sets how the child is started: in a process group of its own.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

// awaitStopped returns when ps(1) shows the child as stopped.
func awaitStopped(pid int) error {
	for end := time.Now().Add(exitBound); ; time.Sleep(5 * time.Millisecond) {
		state, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
		switch {
		case err != nil:
			return fmt.Errorf("asking ps for the state of process %d: %w", pid, err)
		case strings.HasPrefix(strings.TrimSpace(string(state)), "T"):
			return nil
		case time.Now().After(end):
			return fmt.Errorf("process %d has not stopped within %v", pid, exitBound)
		}
	}
}
