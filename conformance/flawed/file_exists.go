package flawed

import (
	"context"

	"github.com/mortiselock/lock/backend"
)

var z48Exists = Lock{
	ID: "Z48", Title: "a file that exists is the lock",
	Summary: "A process that dies leaves its file.",
	Seen:    "tox-dev/filelock#476 (SoftFileLock), nightlyone/lockfile#25, qTox/qTox#5709.",
	Instead: "Use flock, which ends with the process, or an expiry in the file.",
	File:    "file_exists.go", Over: Memory,
	Rule: "CrashFrees",
	Also: append([]string{"CrashBetweenSteps", "WakesAtAnyMoment"}, takeovers...),
	On:   onFiles(func(d *directory) backend.Backend { return fileExists{fileLock{dir: d}} }),
}

// fileExists creates the file of a key, or finds that it is there.
//
//	A: open("job.lock", O_CREAT|O_EXCL)  -> created, A works
//	A: is killed
//	B: open("job.lock", O_CREAT|O_EXCL)  -> it exists, and tomorrow too
//
// Only one process creates it, and tests in which everybody releases pass. Those who
// delete a file that is too old, or whose process is gone, can delete the next one.
// Caught by CrashFrees.
//
// Instead: a lock that the system ends, or an expiry that is part of the lock.
type fileExists struct{ fileLock }

func (l fileExists) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	sent := now()
	if err := ctx.Err(); err != nil {
		return backend.Grant{}, err
	}
	if !l.dir.create(req.Key, fileText{owner: req.ID.Hex()}) && !l.mine(backend.HoldOf(req)) {
		return backend.Grant{}, held(req.Key)
	}
	return granted(sent, req.TTL), nil
}

func (l fileExists) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	sent := now()
	return renewed(sent, hold.TTL, l.mine(hold), ctx.Err())
}

func (l fileExists) Release(ctx context.Context, hold backend.Hold) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !l.mine(hold) {
		return backend.ErrNotHeld
	}
	l.dir.unlink(hold.Key)
	return nil
}

func (l fileExists) mine(hold backend.Hold) bool { return l.dir.read(hold.Key).owner == hold.ID.Hex() }
