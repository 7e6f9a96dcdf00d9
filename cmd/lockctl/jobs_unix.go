//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// jobControl makes a command in a process group of its own behave on a terminal
// as if it were in lockctl's. The command gets the terminal's foreground when it
// first needs it, not before: in "lockctl run k -- cmd | less" it is less that
// reads the keyboard. When the command is suspended lockctl suspends itself, so
// that the shell gets its prompt back. A suspended lockctl renews nothing: after
// one TTL the hold is lost and the command is killed.
type jobControl struct {
	process   *process
	signals   chan<- os.Signal // where SIGTSTP is notified
	tty       *os.File         // nil without a controlling terminal
	own       int              // our process group
	lent      bool             // the command has, or had when it was suspended, the foreground
	suspended bool             // the command was asked to suspend through lockctl
}

func newJobControl(p *process, signals chan<- os.Signal) *jobControl {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		tty = nil
	}
	return &jobControl{process: p, signals: signals, tty: tty, own: unix.Getpgrp()}
}

// signal handles the signals of job control and reports whether it did.
func (j *jobControl) signal(sig os.Signal) bool {
	switch sig {
	case syscall.SIGTSTP:
		j.suspended = true
		j.process.forward(sig)
		return true
	case syscall.SIGCONT:
		j.suspended = false
		if j.lent && j.foreground() == j.own {
			j.setForeground(j.process.pid)
		}
		j.process.forward(sig)
		return true
	}
	return false
}

// stopped is told that the command has stopped.
func (j *jobControl) stopped(sig syscall.Signal) {
	switch sig {
	case syscall.SIGTTIN, syscall.SIGTTOU:
		if j.suspended {
			// The request to suspend came when it had just stopped for the terminal.
			j.lent = true
			j.suspend()
			return
		}
		switch j.foreground() {
		case j.own:
			j.setForeground(j.process.pid)
			j.lent = true
			j.process.forward(syscall.SIGCONT)
		case j.process.pid:
			j.process.forward(syscall.SIGCONT)
		case 0:
			// No terminal: somebody sent the signal, and will continue it.
		default:
			// We are in the background ourselves; fg continues us with SIGCONT.
			j.lent = true
			j.suspend()
		}
	case syscall.SIGTSTP:
		if j.foreground() == j.process.pid {
			j.setForeground(j.own)
			j.suspendOthers()
			j.suspend()
		} else if j.suspended {
			j.suspend()
		}
	}
}

// suspend stops lockctl. It returns after SIGCONT, which is notified besides.
func (j *jobControl) suspend() { _ = unix.Kill(unix.Getpid(), unix.SIGSTOP) }

// suspendOthers stops the rest of our process group, such as the script that runs
// us, as the terminal would have if the command had not had the foreground.
func (j *jobControl) suspendOthers() {
	signal.Ignore(syscall.SIGTSTP)
	_ = unix.Kill(0, unix.SIGTSTP)
	signal.Notify(j.signals, syscall.SIGTSTP)
}

// close takes the terminal back from a command that has ended.
func (j *jobControl) close() {
	if j.tty == nil {
		return
	}
	if j.lent && j.foreground() == j.process.pid {
		j.setForeground(j.own)
	}
	_ = j.tty.Close()
}

// foreground is the process group in the foreground of our terminal, or zero.
func (j *jobControl) foreground() int {
	if j.tty == nil {
		return 0
	}
	pgid, err := unix.IoctlGetInt(int(j.tty.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return pgid
}

// setForeground works from the background too, where the kernel would stop a
// process that does not ignore SIGTTOU. The command runs already and does not
// inherit that.
func (j *jobControl) setForeground(pgid int) {
	signal.Ignore(syscall.SIGTTOU)
	defer signal.Reset(syscall.SIGTTOU)
	_ = unix.IoctlSetPointerInt(int(j.tty.Fd()), unix.TIOCSPGRP, pgid)
}
