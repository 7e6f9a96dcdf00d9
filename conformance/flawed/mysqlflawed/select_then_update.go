package mysqlflawed

import (
	"context"
	"time"

	"github.com/mortiselock/lock/backend"
)

var selectThenUpdate = Lock{
	ID: "Z09", Title: "SELECT, decide in the client, UPDATE",
	Summary: "Two clients read \"free\", and both write themselves in.",
	Seen:    "Object-relational mappers.",
	Instead: "The condition belongs into the UPDATE.",
	File:    "select_then_update.go",
	Rule:    "Exclusive",
	On:      onTable(func(t table) backend.Backend { return checkThenAct{t} }),
}

// checkThenAct reads and writes in two statements.
//
//	A: SELECT expires FROM locks WHERE lock_key = job    -> long ago
//	B: SELECT expires FROM locks WHERE lock_key = job    -> long ago
//	A: UPDATE locks SET owner = a WHERE lock_key = job   -> A works
//	B: UPDATE locks SET owner = b WHERE lock_key = job   -> B works too
//
// A transaction around both changes nothing: a plain SELECT locks nothing. Caught by
// Exclusive.
type checkThenAct struct{ table }

func (t checkThenAct) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if err := t.free(ctx, req.Key); err != nil {
		return backend.Grant{}, err
	}
	sent := instant()
	var owner string
	var free bool
	if err := t.db.QueryRowContext(ctx, "SELECT owner, expires<="+now+" FROM "+t.name+" WHERE lock_key=?", req.Key).Scan(&owner, &free); err != nil {
		return backend.Grant{}, err
	}
	if !free && owner != req.ID.Hex() {
		return granted(sent, req, false, nil)
	}
	time.Sleep(20 * time.Millisecond) // the gap: a busy machine, a slow network
	ok, err := t.matched(ctx, "UPDATE "+t.name+" SET owner=?, expires=IF(LAST_INSERT_ID(1),"+then+",NULL) WHERE lock_key=?",
		req.ID.Hex(), req.TTL.Microseconds(), req.Key)
	return granted(sent, req, ok, err)
}
