package mysqlflawed

import (
	"context"

	"github.com/mortiselock/lock/backend"
)

var takesWithoutCondition = Lock{
	ID: "Z08", Title: "UPDATE without a condition on the holder",
	Summary: "Whoever comes writes itself into the row.",
	Seen:    "Tutorials about upserts.",
	Instead: "WHERE lock_key = ? AND (expires <= now OR owner = me).",
	File:    "update_without_condition.go",
	Rule:    "Exclusive",
	On:      onTable(func(t table) backend.Backend { return unconditional{t} }),
}

// unconditional takes the row whoever has it.
//
//	A: UPDATE locks SET owner = a WHERE lock_key = job   -> A works
//	B: UPDATE locks SET owner = b WHERE lock_key = job   -> B works too
//
// Caught by Exclusive.
type unconditional struct{ table }

func (t unconditional) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if err := t.free(ctx, req.Key); err != nil {
		return backend.Grant{}, err
	}
	sent := instant()
	ok, err := t.matched(ctx, "UPDATE "+t.name+" SET owner=?, expires=IF(LAST_INSERT_ID(1),"+then+",NULL) WHERE lock_key=?",
		req.ID.Hex(), req.TTL.Microseconds(), req.Key)
	return granted(sent, req, ok, err)
}
