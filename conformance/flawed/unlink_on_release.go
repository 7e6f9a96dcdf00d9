package flawed

import (
	"context"

	"github.com/mortiselock/lock/backend"
)

var z48Unlink = Lock{
	ID: "Z48", Title: "a lock file that goes with the release",
	Summary: "Whoever opened the file before locks one that nobody else sees.",
	Seen:    "cashapp/hermit#423, tox-dev/filelock#577, wolph/portalocker#115.",
	Instead: "Leave the file, or look after locking whether the name still leads to it.",
	File:    "unlink_on_release.go", Over: Memory,
	Rule: "Exclusive",
	Also: append([]string{"ReleaseDetached", "ReleaseFrees"}, keepsNobodyOut...),
	On:   onFiles(func(d *directory) backend.Backend { return unlinkOnRelease{fileLock{dir: d}} }),
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
// again if they differ; or never delete it. file does both.
type unlinkOnRelease struct{ fileLock }

func (l unlinkOnRelease) Release(ctx context.Context, hold backend.Hold) error {
	return l.change(ctx, hold, func(f *file) {
		dawdle() // somebody opens the file
		f.text = fileText{}
		l.dir.unlink(hold.Key)
	})
}
