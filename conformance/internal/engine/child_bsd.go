//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package engine

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// dieTogether has nothing to do: the process ends when its standard input does.
func dieTogether(*exec.Cmd) {}

// standsStill reports whether ps(1) shows the process as stopped.
func standsStill(pid int) (bool, error) {
	state, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return false, fmt.Errorf("asking ps for the state of process %d: %w", pid, err)
	}
	return strings.HasPrefix(strings.TrimSpace(string(state)), "T"), nil
}

const stopTick = 5 * time.Millisecond // between two looks whether a process has stopped
