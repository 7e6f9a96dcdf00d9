package rowflawed

import (
	"context"
	"database/sql"

	"github.com/mortiselock/lock/backend"
)

var z43 = Lock{
	ID: "Z43", Title: "session variables are left on a connection of the pool",
	Summary: "The caller's next query finds a timeout of a second.",
	Seen:    "SET SESSION on a connection of database/sql, which resets nothing.",
	Instead: "Connections of the lock's own, or set back, or close.",
	File:    "session_variables.go",
	Rule:    "PoolClean",
	On:      onRows(func(db *sql.DB) backend.Backend { return variablesLeft{newRows(db)} }),
}

// variablesLeft gives its connection back as it has set it.
//
//	lock: SET SESSION wait_timeout = 1; locks, works, rolls back; back to the pool
//	user: takes a connection for a report, thinks for two seconds between two queries
//	user: "invalid connection"; or, in a transaction, half of the work is gone
//
// The lock itself is fine, which is why nobody looks for it there. Caught by
// PoolClean.
type variablesLeft struct{ *rows }

func (v variablesLeft) Release(ctx context.Context, hold backend.Hold) error {
	return v.release(ctx, hold, "ROLLBACK", func(_ context.Context, c *sql.Conn) { _ = c.Close() })
}
