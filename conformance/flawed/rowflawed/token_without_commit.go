package rowflawed

import (
	"context"
	"database/sql"

	"github.com/mortiselock/lock/backend"
)

var uncommittedToken = Lock{
	ID: "Z26", Title: "the token is raised on a connection that does not commit",
	Summary: "When the token's connection closes, the token is rolled back.",
	Seen:    "A DSN or init_connect with autocommit=0.",
	Instead: "Set what you rely on for each connection.",
	File:    "token_without_commit.go",
	Rule:    "TokenIncreases",
	Also:    []string{"tokens", "FencedRegister", "LossEndsUse"},
	On:      onHiddenRows(func(db *sql.DB) backend.Backend { return tokenUncommitted{newRows(db)} }),
}

// tokenUncommitted relies on autocommit, which is off.
//
//	A: locks the row; on another connection: token 5
//	A: the other connection is closed, as pools do now and then: the token is 4 again
//	A: releases
//	B: locks the row; token 5
//
// Caught by TokenIncreases.
type tokenUncommitted struct{ *rows }

func (t tokenUncommitted) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	do := t.steps()
	do.token = func(ctx context.Context, c *sql.Conn, key string) (uint64, error) {
		var id int64
		if err := c.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&id); err != nil {
			return 0, err
		}
		other, err := t.db.Conn(ctx)
		if err != nil {
			return 0, err
		}
		defer discard(other)
		if err := exec(ctx, other, "SET SESSION autocommit = 0"); err != nil {
			return 0, err
		}
		res, err := other.ExecContext(ctx, raiseToken, id, key)
		if err != nil {
			return 0, err
		}
		token, err := res.LastInsertId()
		return uint64(token), err
	}
	return t.try(ctx, req, do)
}

func (t tokenUncommitted) Guarantees() backend.Guarantees {
	g := t.rows.Guarantees()
	g.TokenSurvives = []backend.Fault{backend.FaultClientCrash}
	return g
}
