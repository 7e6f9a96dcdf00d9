package flawed

import (
	"context"
	"slices"

	"github.com/mortiselock/lock/backend"
)

var z09 = Lock{
	ID: "Z09", Title: "SELECT, decide, UPDATE",
	Summary: "Two clients read \"free\", and both write their names.",
	Seen:    "Lock tables behind an ORM: find, check, set, save.",
	Instead: "The condition in the UPDATE, and count the rows; or SELECT ... FOR UPDATE in one transaction.",
	File:    "select_then_update.go", Over: Memory,
	Rule: "ConcurrentTries",
	Also: slices.Concat(takeovers, cleanUps, []string{
		"Progress", "TryIsImmediate", "WaiterOrderLocal", "FairOrder", "ReleaseFrees", "ReleaseTwice", "ReentrantOverWaiters", "CloseEndsHolds",
		"WaitOutlastsTTL",
	}),
	On: onTable(func(s session) backend.Backend { return selectThenUpdate{tableLock{s}} }),
}

// selectThenUpdate looks at the row, and takes it if it is free.
//
//	A: SELECT owner, ends_at FROM locks WHERE name = 'job'   -> free
//	B: SELECT owner, ends_at FROM locks WHERE name = 'job'   -> free
//	A: UPDATE locks SET owner = 'a', ... WHERE name = 'job'  -> 1 row, A works
//	B: UPDATE locks SET owner = 'b', ... WHERE name = 'job'  -> 1 row, B works
//
// A transaction around the two does not help by itself: at the usual isolation
// levels both may read. Caught by ConcurrentTries, which has many ask at once.
//
// Instead: one statement that checks and writes.
type selectThenUpdate struct{ tableLock }

func (t selectThenUpdate) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if err := t.insertIgnore(ctx, req.Key); err != nil {
		return backend.Grant{}, err
	}
	r, err := t.selectRow(ctx, req.Key)
	switch {
	case err != nil:
		return backend.Grant{}, err
	case r.owner != req.ID.Hex() && r.ends > t.utcTimestamp():
		return backend.Grant{}, held(req.Key)
	}
	dawdle()
	return t.takeIf(ctx, req, func(row) bool { return true }) // WHERE name = ?
}
