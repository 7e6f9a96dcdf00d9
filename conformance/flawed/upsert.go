package flawed

import (
	"context"

	"github.com/mortiselock/lock/backend"
)

var z08 = Lock{
	ID: "Z08", Title: "a lock table with an upsert",
	Summary: "The statement that takes the row does not ask whether somebody has it.",
	Seen:    "INSERT ... ON DUPLICATE KEY UPDATE owner = ..., or UPDATE ... WHERE name = ? alone.",
	Instead: "UPDATE ... WHERE name = ? AND (owner = ? OR expired), and count the rows.",
	File:    "upsert.go", Over: Memory,
	Rule: "Exclusive",
	Also: keepsNobodyOut,
	On:   onTable(func(s session) backend.Backend { return upsert{tableLock{s}} }),
}

// upsert makes the row its own, whether it was there or not.
//
//	A: INSERT INTO locks VALUES ('job', 'a', ...) ON DUPLICATE KEY UPDATE owner = 'a', ...   -> ok, A works
//	B: INSERT INTO locks VALUES ('job', 'b', ...) ON DUPLICATE KEY UPDATE owner = 'b', ...   -> ok, B works
//	A: renews: UPDATE ... WHERE owner = 'a'   -> 0 rows, and A learns that it has lost
//
// The statement is right for saving settings, where the last one wins. In a lock
// the first one must. Caught by Exclusive.
//
// Instead: a condition on owner and expiry in the statement itself, and its number
// of rows as the answer.
type upsert struct{ tableLock }

func (t upsert) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if err := t.insertIgnore(ctx, req.Key); err != nil {
		return backend.Grant{}, err
	}
	return t.takeIf(ctx, req, func(row) bool { return true }) // WHERE name = ?
}
