//go:build !linux && !darwin

package filelock

import (
	"time"

	"github.com/mortiselock/lock/backend"
)

// Here the machine's wall clock ends leases, and the Guarantees say so.
const expiryClock = backend.ClockServerWall

var clockAssumptions = []string{
	"The wall clock of the machine is not set forward while a lease is held.",
}

func openBootClock() (bootClock, error) {
	return bootClock{run: runID{Boot: "wall"}, now: func() int64 { return time.Now().UnixNano() }}, nil
}

// localFileSystem accepts everything: network file systems are not recognised on
// this system.
func localFileSystem(string) error { return nil }
