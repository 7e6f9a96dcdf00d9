package mysqlflawed

import (
	"context"
	"errors"

	"github.com/go-sql-driver/mysql"

	"github.com/mortiselock/lock/backend"
)

var goesOnAfterDeadlock = Lock{
	ID: "Z44", Title: "after 1213 the hold is believed to exist",
	Summary: "The victim of the deadlock goes on.",
	Seen:    "mysqljs/mysql#2575, lukas-krecan/ShedLock#147.",
	Instead: "1213 has rolled back the transaction. Create the row in a statement of its own.",
	File:    "goes_on_after_deadlock.go",
	Rule:    "ConcurrentTries",
	On:      onTable(func(t table) backend.Backend { return oblivious{t} }),
}

// oblivious looks for the row with FOR UPDATE and inserts it when there is none.
// Both clients have locked the gap by then, so that neither may insert.
//
//	A: BEGIN; SELECT ... FOR UPDATE   -> nothing
//	B: BEGIN; SELECT ... FOR UPDATE   -> nothing
//	A: INSERT                         waits for B's lock on the gap
//	B: INSERT                         -> 1213: B is rolled back, A goes on and holds the key
//	B: "somebody was faster with the row", COMMIT -> ok, B works too
//
// Caught by ConcurrentTries, where several ask for a new key at once.
type oblivious struct{ table }

func (t oblivious) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	tx, err := t.db.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return backend.Grant{}, err
	}
	defer func() { _ = tx.Rollback() }()
	sent := instant()
	rows, err := tx.QueryContext(ctx, "SELECT owner FROM "+t.name+" WHERE lock_key=? FOR UPDATE", req.Key)
	if err != nil {
		return backend.Grant{}, err
	}
	exists := rows.Next()
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return backend.Grant{}, err
	}
	if exists {
		_ = tx.Rollback()
		return t.table.Try(ctx, req)
	}
	_, err = tx.ExecContext(context.WithoutCancel(ctx), "INSERT INTO "+t.name+" VALUES (?, ?, "+then+")", req.Key, req.ID.Hex(), req.TTL.Microseconds())
	if e := (*mysql.MySQLError)(nil); err != nil && (!errors.As(err, &e) || e.Number != 1213) { // the mistake
		return backend.Grant{}, err
	}
	return granted(sent, req, true, tx.Commit())
}
