//go:build unix && !linux

package main

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// seesAll: there is no subreaper, so a process that has left the process group and lost
// its parent is out of sight.
const seesAll = false

func dieWithParent(*syscall.SysProcAttr) {}

func becomeSubreaper() {}

func ownExecutable() (string, error) { return os.Executable() }

func nameProcess(string) {}

// sharedClock is a clock that all processes of this machine read alike.
func sharedClock() int64 { return time.Now().UnixNano() }

func onlyZombies(int) bool { return false }

type ident struct {
	pid   int
	start uint64
}

func identOf(pid int) ident { return ident{pid: pid} }

// killTree kills the group, and returns how many it has seen: none, or some.
func killTree(_, command ident, _ ...int) int {
	if killGroup(command) {
		return 1
	}
	return 0
}

// askTree sends SIGTERM to the group. Stopped processes are continued, since they could
// not answer.
func askTree(_, command ident, _ ...int) {
	if command.pid > 1 {
		_ = unix.Kill(-command.pid, unix.SIGTERM)
		_ = unix.Kill(-command.pid, unix.SIGCONT)
	}
}

func reused(ident) bool { return false }

func anyLeft(ident, ...int) bool { return false }

type relatives struct{}

var kin relatives

func (*relatives) start(fork func() (int, error)) (int, error) { return fork() }
func (*relatives) forget(int)                                  {}
func (*relatives) adopt()                                      {}
func (*relatives) adopted() (ident, []int, bool)               { return ident{}, nil, false }
