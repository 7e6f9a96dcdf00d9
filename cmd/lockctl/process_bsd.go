//go:build unix && !linux

package main

import (
	"os"
	"syscall"
	"time"
)

// dieWithParent does nothing: only the guard ends the command when lockctl dies.
func dieWithParent(*syscall.SysProcAttr) {}

func dieWithParentToo() {}

func ownExecutable() (string, error) { return os.Executable() }

func nameGuard() {}

// sharedClock is a clock that all processes of this machine read alike.
func sharedClock() int64 { return time.Now().UnixNano() }

func onlyZombies(int) bool { return false }
