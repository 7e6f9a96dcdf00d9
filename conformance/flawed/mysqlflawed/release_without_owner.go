package mysqlflawed

import (
	"context"

	"github.com/mortiselock/lock/backend"
)

var releasesWithoutOwner = Lock{
	ID: "Z08", Title: "release by key, without the owner",
	Summary: "A late holder frees the row of the next one.",
	Seen:    "DELETE FROM locks WHERE name = ?.",
	Instead: "The acquisition's id in every WHERE.",
	File:    "release_without_owner.go",
	Rule:    "ReleaseOwnOnly",
	On:      onTable(func(t table) backend.Backend { return anyonesRelease{t} }),
}

// anyonesRelease frees the row whoever has it.
//
//	A's lease runs out
//	B: takes the row, B works
//	A: UPDATE locks SET owner = '' WHERE lock_key = job   -> that was B's
//
// Caught by ReleaseOwnOnly.
type anyonesRelease struct{ table }

func (t anyonesRelease) Release(ctx context.Context, hold backend.Hold) error {
	ok, err := t.matched(ctx, "UPDATE "+t.name+" SET owner='', expires=IF(LAST_INSERT_ID(1),'1970-01-01',NULL) WHERE lock_key=? AND expires>"+now, hold.Key)
	return found(ok, err)
}
