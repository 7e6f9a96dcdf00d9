package rowflawed

import (
	"context"
	"database/sql"

	"github.com/mortiselock/lock/backend"
)

var z26 = Lock{
	ID: "Z26", Title: "the token is raised in the transaction that holds the lock",
	Summary: "When a connection ends without a commit, the next holder gets its token again.",
	Seen:    "Counting up a column of the locked row.",
	Instead: "Commit the token on another connection.",
	File:    "token_in_transaction.go",
	Rule:    "TokenSurvivesRelease",
	Also:    []string{"TokenSurvivesIdling", "TokenSurvivesLastClose", "TokenInTakeoverOrder", "TokenIncreases", "TokenInGrantOrder", "FencedRegister", "LossEndsUse"},
	// Nobody can see it before the commit.
	On: onHiddenRows(func(db *sql.DB) backend.Backend { return tokenInside{newRows(db)} }),
}

// tokenInside counts its tokens where they can be rolled back.
//
//	A: BEGIN; locks the row; token 5
//	A: stands still, and the server closes its connection: the lock is free, the token 4 again
//	B: BEGIN; locks the row; token 5; writes with it
//	A: goes on, and writes with its token 5, which is not smaller than B's
//
// As long as every holder lives to commit, nothing is wrong. Caught by
// TokenSurvivesRelease.
type tokenInside struct{ *rows }

func (t tokenInside) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	do := t.steps()
	do.token = func(ctx context.Context, c *sql.Conn, key string) (uint64, error) {
		res, err := c.ExecContext(ctx, "UPDATE flawed_tokens SET token = LAST_INSERT_ID(token + 1), connection = CONNECTION_ID() WHERE k = ?", key)
		if err != nil {
			return 0, err
		}
		token, err := res.LastInsertId()
		return uint64(token), err
	}
	return t.try(ctx, req, do)
}

// Release commits, so that the token is kept. That is the case that people test.
func (t tokenInside) Release(ctx context.Context, hold backend.Hold) error {
	return t.release(ctx, hold, "COMMIT", t.giveBack)
}

func (t tokenInside) Guarantees() backend.Guarantees {
	g := t.rows.Guarantees()
	g.TokenSurvives = []backend.Fault{backend.FaultClientCrash}
	return g
}
