package flawed

import (
	"context"

	"github.com/mortiselock/lock/backend"
)

var z48Unlink = Lock{
	ID: "Z48", Title: "a lock file that goes with the release",
	Summary: "Whoever has opened the file before it was deleted locks a file that nobody else sees any more.",
	Seen:    "cashapp/hermit#423, tox-dev/filelock#577, wolph/portalocker#115, volcano-sh/kthena#1714; shell scripts with flock and rm.",
	Instead: "Leave the file where it is, or see after locking that the name still leads to it.",
	File:    "unlink_on_release.go", Over: Memory,
	Rule:    "Exclusive",
	Also:    keepsNobodyOut,
	onFiles: func(d *directory) backend.Backend { return unlinkOnRelease{fileLock{dir: d}} },
}

// unlinkOnRelease tidies up.
//
//	A: open("job.lock"), flock                -> holds
//	B: open("job.lock"), the same file; waits in flock
//	A: unlink("job.lock"), close
//	B: flock returns                          -> holds a file without a name
//	C: open("job.lock") makes a new file, flock -> holds that
//
// B and C have locked two inodes. Caught by Exclusive, where somebody always waits.
//
// Instead: compare fstat of the file with stat of the name once it is locked, and begin
// again if they differ; or never delete it. backend/file does both.
type unlinkOnRelease struct{ fileLock }

func (l unlinkOnRelease) Release(ctx context.Context, hold backend.Hold) error {
	return l.change(ctx, hold, func(f *file) {
		dawdle() // somebody opens the file
		f.text = fileText{}
		l.dir.unlink(hold.Key)
	})
}
