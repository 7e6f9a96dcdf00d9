package flawed

import (
	"context"

	"github.com/mortiselock/lock/backend"
)

var z40 = Lock{
	ID: "Z40", Title: "a release that always succeeds",
	Summary: "The release finds no hold and says nothing.",
	Seen:    "go-redsync/redsync#81; a look at the error of DEL, not at its number.",
	Instead: "None deleted is an error.",
	File:    "release_always_succeeds.go", Over: Redis,
	Rule: "ReleaseOwnOnly",
	Also: []string{
		"ReleaseOldLeaseSameClient", "ReleaseByID", "RefusalLeavesNothing", "BackendErrors", "TokenSurvivesRelease",
		"LostOnRemoval", "ReleaseReportsLoss", "ForceReleaseByToken", "HandOverIsOneStep",
	},
	On: onRedis(func(s single) backend.Backend { return releaseAlwaysSucceeds{s} }),
}

// releaseAlwaysSucceeds compares and deletes in one script, as it should, and then
// drops what the script says.
//
//	A: SET job a NX PX 10000   -> OK; the work takes 12 seconds
//	B: SET job b NX PX 10000   -> OK, after ten
//	A: release                 -> 0 keys deleted, no error: "done"
//	A: commits what it did, though B was at it, too
//
// Nobody is harmed by the release itself. What is lost is the last chance to learn
// that exclusion was not kept. Caught by ReleaseOwnOnly, which expects to be told.
// (ReleaseTwice looks through the lock package, which refuses a second release by
// itself, and ReleaseFrees releases what is held.)
//
// Instead: return an error when there was nothing to release.
type releaseAlwaysSucceeds struct{ single }

func (s releaseAlwaysSucceeds) Release(ctx context.Context, hold backend.Hold) error {
	return deleteIfMine.Run(ctx, s.rdb, []string{s.name(hold.Key)}, hold.ID.Hex()).Err()
}
