//go:build unix

package servertest

import (
	"os"
	"os/exec"
	"syscall"
)

// A server has a process group of its own: an interrupt at the terminal is for
// the tests, and signals reach the processes that the server forked.

func killGroup(cmd *exec.Cmd) error   { return signalGroup(cmd, syscall.SIGKILL) }
func resumeGroup(cmd *exec.Cmd) error { return signalGroup(cmd, syscall.SIGCONT) }

func freezeGroup(cmd *exec.Cmd) error {
	if err := signalGroup(cmd, syscall.SIGSTOP); err != nil {
		return err
	}
	return awaitStopped(cmd.Process.Pid)
}

func signalGroup(cmd *exec.Cmd, sig syscall.Signal) error {
	err := syscall.Kill(-cmd.Process.Pid, sig)
	if err == syscall.ESRCH {
		return os.ErrProcessDone
	}
	return err
}
