package filelock

import (
	"fmt"

	"github.com/mortiselock/lock/backend"
)

// refuseNetwork is the refusal of a file system that other machines may share.
// They have another boot clock, and would take each other's records for ones
// from before a reboot.
func refuseNetwork(dir, kind string) error {
	return fmt.Errorf("%w: filelock: %s is on a %s file system, which other machines may share, and file locks exclude processes of one machine only; name a directory on a local file system, or use a backend with a server",
		backend.ErrPermanent, dir, kind)
}
