//go:build !(linux || darwin || dragonfly || freebsd || netbsd || openbsd)

package engine

import (
	"errors"
	"os"
	"os/exec"
)

// processesWork says that this system lacks the signals that the rules about
// processes send.
const processesWork = false

func monotonic() int64                  { return 0 }
func dieTogether(*exec.Cmd)             {}
func stopProcess(*os.Process) error     { return errors.ErrUnsupported }
func continueProcess(*os.Process) error { return errors.ErrUnsupported }
