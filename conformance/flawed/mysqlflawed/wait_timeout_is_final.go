package mysqlflawed

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/mortiselock/lock/backend"
)

var waitTimeoutIsFinal = Lock{
	ID: "Z44", Title: "1205 ends the wait",
	Summary: "A caller that would wait gets an error.",
	Seen:    "spring-projects/spring-integration#3445 and PR 3297.",
	Instead: "Repeat until the caller's context ends.",
	File:    "wait_timeout_is_final.go",
	Rule:    "Exclusive",
	On:      onTable(func(t table) backend.Backend { return impatient{t} }),
}

// impatient locks the row before it decides, does not wait for those who do the
// same, and takes the server's answer to that for the last word.
//
//	A: BEGIN; SELECT ... FOR UPDATE
//	B: BEGIN; SELECT ... FOR UPDATE NOWAIT   -> 1205 (MySQL: 3572), B's caller gets an error
//
// Caught by Exclusive, where every acquisition that waits must end with the key.
type impatient struct{ table }

func (t impatient) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if err := t.free(ctx, req.Key); err != nil {
		return backend.Grant{}, err
	}
	tx, err := t.db.BeginTx(ctx, nil)
	if err != nil {
		return backend.Grant{}, err
	}
	defer func() { _ = tx.Rollback() }()
	var owner string
	err = tx.QueryRowContext(ctx, "SELECT owner FROM "+t.name+" WHERE lock_key=? FOR UPDATE NOWAIT", req.Key).Scan(&owner)
	if e := (*mysql.MySQLError)(nil); errors.As(err, &e) && (e.Number == 1205 || e.Number == 3572) {
		return backend.Grant{}, fmt.Errorf("%w: %w", backend.ErrPermanent, err) // the mistake
	}
	if err != nil {
		return backend.Grant{}, err
	}
	if err := tx.Rollback(); err != nil {
		return backend.Grant{}, err
	}
	return t.table.Try(ctx, req)
}
