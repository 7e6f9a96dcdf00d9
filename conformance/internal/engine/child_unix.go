//go:build linux || darwin || dragonfly || freebsd || netbsd || openbsd

package engine

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// processesWork says that this system has the signals that the rules about
// processes send.
const processesWork = true

// monotonic reads the monotonic clock of the machine, in nanoseconds.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(fmt.Sprintf("conformance: clock_gettime(CLOCK_MONOTONIC): %v", err))
	}
	return ts.Nano()
}

// stopProcess stops the process and returns when it stands still.
func stopProcess(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(stopTick) {
		switch still, err := standsStill(p.Pid); {
		case err != nil:
			return err
		case still:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("process %d has not stopped within 10 s of SIGSTOP", p.Pid)
		}
	}
}

func continueProcess(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
